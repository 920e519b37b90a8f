"""The exchange of a set of gradients, eagerly and inside a ``tf.function``: what the tape and the Keras optimizer stand on.

In a graph gradients are handed over as soon as they exist, large ones by a function each, in the order in which the backward pass makes them,
and the last function waits for all. TensorFlow runs the functions of a graph that have side effects in the order in which they were
traced, so ranks hand over and wait in the same order, and no wait can take the thread that a hand-over needs. In the graphs of a session the
wait depends on all that is handed over, and has a thread of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Adasum, Array, Average, GradientBuckets, HorovodInternalError, MismatchError, Parameter, ProcessSet, ReduceOp, global_process_set
from hvdlite.agreement import check_start, first_difference, note_start, objects_by_rank
from hvdlite.errors import UnsupportedError

from .compression import Compression
from .tensors import apart, as_array, copied, in_creation_order, is_for_session, is_tracing, plain_python, refuse_xla

Gradient: TypeAlias = Any
"""A tensor, ``tf.IndexedSlices``, or None where the loss does not depend on the parameter."""

_CALL_BYTES = 1 << 16
_ABSENT, _DENSE, _SPARSE = "nothing", "a dense tensor", "IndexedSlices"


class GradientExchange:
    """The gradients of one set of parameters, and their exchange: made once, used every step, whatever is retraced.

    Args:
        name: identifies it across ranks; :meth:`hvdlite.channel.Channel.auto_name` gives one.
        parameters: name, shape, dtype and group of each, in an order that is the same on all ranks.
        compression: what a user may pass; a compressor's state belongs to this exchange.
        op: Average, Sum, or Adasum for dense gradients.
        predivide: divide by this before the sum, and by the rest of the number of ranks after it.
        sparse_as_dense: exchange ``IndexedSlices`` as dense tensors.
        weights: gives the parameters' values, in order; ranks compare them in the second step, since Horovod's scripts make them equal at the end of
            the first. None: they are not compared.
        remedy: the call that makes them equal, for the error message.
        process_set: the ranks that exchange; the others get their own gradients back.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        compression: Any = None,
        *,
        op: ReduceOp = Average,
        predivide: float = 1.0,
        sparse_as_dense: bool = False,
        weights: Callable[[], Sequence[Any]] | None = None,
        remedy: str = "hvd.broadcast_variables(model.variables, root_rank=0)",
        process_set: ProcessSet = global_process_set,
    ):
        self._process_set = process_set
        resolved = Compression.resolve(compression)
        self.compressor = copy.deepcopy(resolved) if resolved is compression else resolved
        self._name, self._parameters, self._op, self._predivide = name, list(parameters), ReduceOp(op), predivide
        self._sparse_as_dense, self._weights, self._remedy = sparse_as_dense, weights, remedy
        self._kinds: list[str] = []  # agreed in the first exchange
        self._order: list[str] = []
        self._buckets: GradientBuckets | None = None
        self._handed: set[int] = set()
        self._num_steps = 0
        self._gathers: dict[int, tuple[hvdlite.Handle, hvdlite.Handle]] = {}

    @property
    def order(self) -> list[str]:
        """The order of the parameters in the buckets, once it is final."""
        return [] if self._buckets is None else self._buckets.order

    def restore_order(self, order: Sequence[str]) -> None:
        """Lay the buckets out as in an earlier run, if the parameters are the same; rank 0 decides for all, before the first exchange."""
        if sorted(order) == sorted(p.name for p in self._parameters):
            self._order = list(order)

    @plain_python
    def exchange(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """The gradients of all ranks combined; every rank calls it equally often. One process gets its own back.

        Eagerly a gradient that no rank has stays None. A graph is the same in every step: there it stays None if no rank had it in the first
        exchange, and counts as zeros elsewhere.

        Raises:
            MismatchError: the ranks' parameters differ.
            SettingError: their weights differ.
            HorovodInternalError: an exchange failed. Inside a ``tf.function`` TensorFlow raises an error of its own that quotes it.
        """
        if len(gradients) != len(self._parameters):
            raise ValueError(f"{len(gradients)} gradients for {len(self._parameters)} parameters of {self._name!r}; one each, or None, is expected")
        if hvdlite.world().partners(self._process_set) is None:
            return list(gradients)
        refuse_xla(self._name)
        self._agree([self._kind_of(g) for g in gradients])
        return self._trace(gradients) if is_tracing() else self._now(gradients)

    # --- eagerly ---

    def _now(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        for i in reversed(range(len(gradients))):
            if self._is_sparse(i):
                indices, values = self._slices(i, gradients[i])
                self._gather(i, as_array(indices), as_array(values))
            elif gradients[i] is not None:
                self._hand_over(i, as_array(self._dense(i, gradients[i])))
        absent, found = self._finish()
        results: list[Gradient] = []
        for i, parameter in enumerate(self._parameters):
            if i in found:
                indices, values = map(tf.constant, found[i])
                results.append(tf.IndexedSlices(values, indices, tf.constant(parameter.shape)))
                continue
            view = self._view(i)
            results.append(None if parameter.name in absent and not view.any() else tf.constant(view))
        return results

    # --- in a graph ---

    def _trace(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        present = [i for i, g in enumerate(gradients) if g is not None or self._is_sparse(i)]
        left_out = [i for i, g in enumerate(gradients) if g is None and self._kinds[i] == _ABSENT]
        wanted = [i for i in range(len(gradients)) if i not in left_out]
        with tf.name_scope("hvdlite_exchange"):
            given = {i: self._slices(i, gradients[i]) if self._is_sparse(i) else (self._dense(i, gradients[i]),) for i in present}
            *early, last = self._calls(in_creation_order({i: gradients[i] for i in given}))
            types = [tf.as_dtype(dtype) for i in wanted for dtype in [tf.int64] * self._is_sparse(i) + [self._parameters[i].dtype]]
            if is_for_session():
                outputs = iter(self._in_session([*early, last], given, wanted, left_out, types))
            else:
                for numbers in early:
                    tf.numpy_function(partial(self._traced_hand_over, numbers), [t for i in numbers for t in given[i]], [])
                outputs = iter(tf.numpy_function(partial(self._traced_finish, last, wanted, left_out), [t for i in last for t in given[i]], types))
        results: list[Gradient] = [None] * len(gradients)
        for i in wanted:
            parameter, first = self._parameters[i], next(outputs)
            if self._is_sparse(i):
                values = tf.ensure_shape(next(outputs), (None, *parameter.shape[1:]))
                results[i] = tf.IndexedSlices(values, tf.ensure_shape(first, (None,)), tf.constant(parameter.shape))
            else:
                results[i] = tf.ensure_shape(first, parameter.shape)
        return results

    def _in_session(
        self, calls: Sequence[Sequence[int]], given: dict[int, tuple[tf.Tensor, ...]], wanted: Sequence[int], left_out: Sequence[int], types: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """A session keeps no order by itself, and its threads must not wait: see :func:`apart`."""
        handed = [tf.numpy_function(partial(self._session_hand_over, numbers), [t for i in numbers for t in given[i]], tf.int64) for numbers in calls]
        return apart(lambda _: self._traced_finish((), wanted, left_out), tf.add_n(handed), types)

    def _session_hand_over(self, numbers: Sequence[int], *arrays: Array) -> Array:
        """Returns something, so that what waits can depend on it."""
        self._traced_hand_over(numbers, *arrays)
        return np.int64(len(numbers))

    def _calls(self, order: Sequence[int]) -> list[list[int]]:
        """Which gradients one function hands over. A call costs as much as copying :data:`_CALL_BYTES`, so small ones go together; the last waits, too."""
        calls: list[list[int]] = [[]]
        filled = 0  # bytes
        for i in order:
            if filled >= _CALL_BYTES:
                calls.append([])
                filled = 0
            calls[-1].append(i)
            filled += self._parameters[i].nbytes
        return calls

    def _traced_hand_over(self, numbers: Sequence[int], *arrays: Array) -> tuple[()]:
        given = iter(arrays)
        for i in numbers:
            if self._is_sparse(i):
                self._gather(i, next(given), next(given))
            else:
                self._hand_over(i, next(given))
        return ()

    def _traced_finish(self, last: Sequence[int], wanted: Sequence[int], left_out: Sequence[int], *arrays: Array) -> list[Array]:
        self._traced_hand_over(last, *arrays)
        absent, found = self._finish()
        for i in left_out:
            name = self._parameters[i].name
            if name not in absent:
                raise HorovodInternalError(
                    f"another rank has a gradient of {name!r}, which the graph of rank {hvdlite.rank()} leaves out since no rank had it in the first step; "
                    "the same parameters are expected to be trained from the first step on; train eagerly, or make every rank's loss depend on it"
                )
        return [array for i in wanted for array in (found[i] if i in found else (copied(self._view(i)),))]

    # --- both ---

    def _kind_of(self, gradient: Gradient) -> str:
        if gradient is None:
            return _ABSENT
        return _SPARSE if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense else _DENSE

    def _is_sparse(self, i: int) -> bool:
        return self._kinds[i] == _SPARSE

    def _dense(self, i: int, gradient: Gradient) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(gradient), self._parameters[i].dtype)

    def _slices(self, i: int, gradient: Gradient) -> tuple[tf.Tensor, tf.Tensor]:
        """Indices and values. A rank without a gradient has none, one with a dense tensor has every row."""
        parameter = self._parameters[i]
        if gradient is None:
            return tf.zeros((0,), tf.int64), tf.zeros((0, *parameter.shape[1:]), parameter.dtype)
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.range(parameter.shape[0], dtype=tf.int64), self._dense(i, gradient)
        return tf.cast(gradient.indices, tf.int64), tf.cast(gradient.values, parameter.dtype)

    def _view(self, i: int) -> Array:
        assert self._buckets is not None
        return self._buckets.view(self._parameters[i].name)

    def _hand_over(self, i: int, gradient: Array) -> None:
        self._begin(i)
        assert self._buckets is not None
        self._buckets.hand_over(self._parameters[i].name, gradient)

    def _gather(self, i: int, indices: Array, values: Array) -> None:
        self._begin(i)
        name = f"{self._name}.{self._parameters[i].name}"
        parts = (indices, "indices"), (values, "values")
        first, second = (hvdlite.allgather_async(np.array(array, order="C"), name=f"{name}.{what}", process_set=self._process_set) for array, what in parts)
        self._gathers[i] = first, second

    def _begin(self, i: int) -> None:
        if i in self._handed:
            raise HorovodInternalError(
                f"the gradient of {self._parameters[i].name!r} came twice in one step of {self._name!r}; the step before is expected to have ended; "
                "after a step that failed, make a new tape or optimizer; exchange the gradients of one model in one thread"
            )
        self._handed.add(i)

    def _finish(self) -> tuple[frozenset[str], dict[int, tuple[Array, Array]]]:
        """Wait for everything; which parameters no rank has, and the gathered indices and values."""
        gathers, self._gathers = self._gathers, {}
        self._handed.clear()
        self._num_steps += 1
        if self._weights is not None and self._num_steps <= 2:
            weights = zip((p.name for p in self._parameters), map(as_array, self._weights()), strict=True)
            if self._num_steps == 1:
                note_start(weights)
            else:
                self._weights = None
                check_start(weights, self._remedy, is_first=False, process_set=self._process_set)
        absent = self._buckets.finish() if self._buckets is not None else frozenset()
        with hvdlite.world().metrics.exposed():
            return absent, {i: (indices.wait()[0], self._mean_of(values)) for i, (indices, values) in gathers.items()}

    def _mean_of(self, values: hvdlite.Handle) -> Array:
        """Gathered values, divided by the number of ranks that took part, if a mean is wanted."""
        whole, _ = values.wait()
        return (whole / values.num_ranks).astype(whole.dtype) if self._op is Average else whole

    def _agree(self, kinds: list[str]) -> None:
        """Before the first exchange: that the ranks train the same parameters, which of them are sparse, and how they lie in the buckets."""
        if self._kinds:
            return
        mine = [(p.name, p.shape, p.dtype) for p in self._parameters]
        gathered = objects_by_rank((mine, kinds, self._order), f"{self._name}.parameters", self._process_set)
        everyone = list(gathered.values())
        problem = first_difference([theirs for theirs, _, _ in everyone], self._process_set, list(gathered))
        if problem:
            raise MismatchError(problem)
        agreed = []
        for i, parameter in enumerate(self._parameters):
            seen = [theirs[i] for _, theirs, _ in everyone]
            if {_DENSE, _SPARSE} <= set(seen):
                first, other = (self._process_set.ranks or [0])[0], next(k for k in seen if k != seen[0])
                raise MismatchError(
                    f"the gradient of {parameter.name!r} is {seen[0]} on rank {first} but {other} on another rank; "
                    "all ranks must agree; build the same model on every rank, or pass sparse_as_dense=True"
                )
            if self._op is Adasum and _SPARSE in seen:
                raise UnsupportedError(
                    f"the gradient of {parameter.name!r} is {_SPARSE}, of which op=Adasum has no meaning; dense tensors are expected; pass sparse_as_dense=True"
                )
            agreed.append(next((k for k in seen if k != _ABSENT), _ABSENT))
        self._kinds = agreed
        in_buckets = [p for i, p in enumerate(self._parameters) if not self._is_sparse(i)]
        if in_buckets:
            self._buckets = GradientBuckets(
                hvdlite.world(),
                self._name,
                in_buckets,
                self.compressor,
                op=self._op,
                prescale=1.0 / self._predivide,
                postscale=self._predivide,
                process_set=self._process_set,
            )
            if everyone[0][2]:
                self._buckets.lay_out_as(everyone[0][2])
