"""The gradients of one optimizer on this rank: gathered over the passes of a step, exchanged in buckets. Arrays only; backends bring the tensors."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

import hvdlite
from hvdlite import Average, GradientBuckets, Handle, MismatchError, Parameter, ProcessSet, ReduceOp, Sum, allreduce_async, global_process_set
from hvdlite.agreement import check_start, first_difference, objects_by_rank, unique_names
from hvdlite.arrays import Array
from hvdlite.compression import RESIDUAL

from .compression import Compression
from .variables import dtype_of, path_of

LOG = logging.getLogger("hvdlite")
REMEDY = "hvd.broadcast_variables(model.variables, 0), or fit with hvd.DataParallel() or hvd.callbacks.BroadcastGlobalVariablesCallback(0)"


@dataclass(frozen=True)
class Options:
    """How an optimizer's gradients are exchanged; the words are those of ``DistributedOptimizer``."""

    name: str | None = None
    compression: Any = None
    op: ReduceOp = Average
    predivide: float = 1.0
    passes: int = 1
    average_passes: bool = False
    groups: Any = None
    process_set: ProcessSet = global_process_set


class State(IntEnum):
    """Where a rank stands when the others are about to step."""

    ENDED = 0  # it has no further batch
    OVERFLOWED = 1  # its gradients are not finite
    READY = 2


class Exchange(ABC):
    """Exchanges the gradients of ``variables``. A subclass in ``_backends/`` turns tensors into arrays and back."""

    def __init__(self, variables: Sequence[Any], options: Options):
        world = hvdlite.world()
        self.variables, self.options = list(variables), options
        self._channel = world.channel(options.process_set)
        self._name = options.name or self._channel.auto_name("optimizer")
        self._names = unique_names(map(path_of, variables))
        groups = number_groups(options.groups, variables)
        self._parameters = [Parameter(name, tuple(v.shape), dtype_of(v), groups.get(id(v))) for name, v in zip(self._names, variables, strict=True)]
        compressor = Compression.resolve(options.compression)
        self.compressor = copy.deepcopy(compressor)  # what it remembers is this optimizer's
        if compressor is not None:
            compressor.check({p.name: p.shape for p in self._parameters})
            world.remark_on(compressor.spec)
        self._order: list[str] = []
        self._has_started = self._has_compared = self._was_late = False
        self.is_late = False
        """The weights are compared after the first exchange: by the next :meth:`start`."""
        self._sums: list[Array | None] = [None] * len(self.variables)
        self._passes_done = 0
        self._state_handle: Handle | None = None
        self.is_watched = False

    @cached_property
    def _buckets(self) -> GradientBuckets:
        o = self.options
        passes = 1 if o.average_passes else o.passes  # Keras divides by the passes
        return GradientBuckets(
            hvdlite.world(),
            self._name,
            self._parameters,
            self.compressor,
            op=o.op,
            prescale=1.0 / o.predivide,
            postscale=o.predivide * passes,
            process_set=o.process_set,
        )

    @property
    def order(self) -> list[str]:
        """The order of the variables in the buckets, once it is final."""
        return self._buckets.order

    def lay_out_as(self, order: Sequence[str]) -> None:
        """Lay the buckets out as in an earlier run; every rank passes the same order."""
        self._buckets.lay_out_as(order)

    def watch(self, *, overlap: bool) -> None:
        """Let ranks tell each other that they have a batch: one without is then an error instead of a wait.

        ``overlap``: nobody but Keras's own step makes and sees the gradients, so that they may be exchanged as soon as each exists.
        """
        self.is_watched = True

    def unwatch(self) -> None:
        """Let every rank step when it likes."""
        self.is_watched = False

    # --- what a subclass brings ---

    @abstractmethod
    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The mean over the ranks of tensors, one for each variable, None where there is none."""

    @abstractmethod
    def all_finite(self, finite: Any) -> Any:
        """Whether a scalar boolean tensor is true on every rank, as a tensor."""

    # --- on arrays ---

    def start(self, weights: Callable[[], Iterable[Array]]) -> None:
        """Before the first exchange: the ranks train the same variables, from the same values, in the same order of buckets.

        Raises:
            MismatchError: names, shapes or dtypes differ.
            SettingError: the values differ.
        """
        if not self._has_started:
            self._has_started, self._was_late = True, self.is_late
            self._compare_variables()
        if not self._has_compared and not self.is_late:
            self._has_compared = True
            check_start(zip(self._names, weights(), strict=True), REMEDY, is_first=not self._was_late, process_set=self.options.process_set)

    def _compare_variables(self) -> None:
        mine = [(p.name, p.shape, p.dtype) for p in self._parameters]
        process_set = self.options.process_set
        gathered = objects_by_rank((mine, self._order), f"{self._name}.variables", process_set)
        everyone = list(gathered.values())
        problem = first_difference([theirs for theirs, _ in everyone], process_set, list(gathered))
        if problem:
            raise MismatchError(problem)
        if everyone[0][1]:
            self.lay_out_as(everyone[0][1])

    def reduce(self, gradients: Sequence[Array | None], weights: Callable[[], Iterable[Array]]) -> list[Array | None]:
        """Means in the memory of the buckets, valid until the next call; None for a variable that no rank has a gradient of.

        When a step takes several passes, all but the last give zeros, which Keras's own accumulation adds up to nothing.
        """
        if self.options.passes > 1:
            self._add_up(gradients)
            if self._passes_done < self.options.passes:
                return [None if g is None else np.zeros_like(g) for g in gradients]
            gradients, self._passes_done = self._sums, 0
            self._sums = [None] * len(self.variables)
        self.begin(weights)
        for i in reversed(range(len(gradients))):
            if gradients[i] is not None:
                self.hand_over(i, gradients[i])
        return self.collect()

    def hand_over(self, i: int, gradient: Array | None) -> None:
        """The gradient of the i-th variable is there: copy it into its bucket."""
        self._buckets.hand_over(self._names[i], gradient)

    def collect(self) -> list[Array | None]:
        """Wait for what was handed over; the means, as :meth:`reduce` returns them."""
        self.hear()
        absent = self._buckets.finish()
        return [None if name in absent and not self._buckets.view(name).any() else self._buckets.view(name) for name in self._names]

    def begin(self, weights: Callable[[], Iterable[Array]]) -> None:
        """This rank is about to exchange."""
        self.start(weights)
        if self.is_watched and self._state_handle is None:
            self._tell(State.READY)

    def reduce_into(self, gradients: Sequence[Array | None], weights: Callable[[], Iterable[Array]], out: Sequence[Array | None]) -> None:
        """As :meth:`reduce`, for a compiled step: it decided before which variables have a gradient."""
        for name, mean, result in zip(self._names, self.reduce(gradients, weights), out, strict=True):
            if result is not None:
                result[...] = 0 if mean is None else mean
            elif mean is not None:
                raise MismatchError(
                    f"{name!r} has a gradient on another rank but not on rank {hvdlite.rank()}, whose step was compiled without; all ranks must train the same "
                    "variables; build and freeze the same model on every rank"
                )

    def agree(self, finite: bool) -> bool:
        """Whether ``finite`` is true on every rank: only then will all of them exchange."""
        self._tell(State.READY if finite else State.OVERFLOWED)
        if self.hear(keep=True):
            return True
        self._state_handle = None
        return False

    def end(self) -> None:
        """This rank takes no further step for now; all ranks say so together.

        Raises:
            MismatchError: another rank goes on.
        """
        if self.is_watched:
            self._tell(State.ENDED)
            self.hear()

    def _add_up(self, gradients: Sequence[Array | None]) -> None:
        self._passes_done += 1
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                total = self._sums[i]
                self._sums[i] = np.array(gradient) if total is None else total + gradient

    def _tell(self, state: State) -> None:
        topology = self._channel.topology
        states = np.zeros(topology.size, np.int32)
        states[topology.rank] = state
        self._states = states
        self._state_handle = allreduce_async([states], name=f"{self._name}.step", op=Sum, process_set=self.options.process_set)

    def hear(self, *, keep: bool = False) -> bool:
        """Whether all ranks are ready, as far as they said. ``keep``: the exchange that follows need not ask again.

        Raises:
            MismatchError: some have no further batch, and some have.
        """
        if self._state_handle is None:
            return True
        self._state_handle.wait()
        if not keep:
            self._state_handle = None
        states = [State(int(s)) for s in self._states]
        ended = [rank for rank, state in enumerate(states) if state is State.ENDED]
        if ended and len(ended) < len(states):
            others = [rank for rank in range(len(states)) if rank not in ended]
            raise MismatchError(
                f"{_ranks(ended)} no further batch and {_ranks(others)} one more; all ranks must take the same number of steps, and stop together; "
                "give every rank the same number of batches with hvd.shard(...) or the same steps_per_epoch, and put callbacks that stop training "
                "by themselves before hvd.DataParallel()"
            )
        return all(state is State.READY for state in states)

    # --- what must survive a restart ---

    def state_dict(self) -> dict[str, Any]:
        """What the compressor remembers on this rank, and the order of the buckets."""
        place = self._channel.topology
        own: dict[str, Any] = {"rank": place.rank, "size": place.size, "order": self.order}
        if self.compressor is None:
            return own | {"compression": "none", "state": {}}
        remembered = {name: {q: np.array(a) for q, a in quantities.items()} for name, quantities in self.compressor.state_dict().items()}
        return own | {"compression": self.compressor.spec, "state": remembered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave. Residuals of another rank, or of another number of ranks, are dropped with a warning."""
        if sorted(state["order"]) == sorted(self._names):
            self._order = list(state["order"])
        if self.compressor is None:
            return
        if state["compression"] != self.compressor.spec:
            LOG.warning("the checkpoint was compressed with %s, this run with %s; the compressor starts afresh", state["compression"], self.compressor.spec)
            return
        remembered = state["state"]
        place = self._channel.topology
        if (state["rank"], state["size"]) != (place.rank, place.size):
            LOG.warning(
                "rank %d of %d loads the state of rank %d of %d: residuals belong to one rank and are dropped; save one checkpoint a rank",
                place.rank, place.size, state["rank"], state["size"],
            )  # fmt: skip
            remembered = {name: {q: a for q, a in quantities.items() if q != RESIDUAL} for name, quantities in remembered.items()}
        self.compressor.load_state_dict(remembered)


def number_groups(groups: Any, variables: Sequence[Any]) -> dict[int, int]:
    """Horovod's ``groups`` as ``id(variable) -> number``: an int splits the variables evenly, lists name them; the others travel in the usual buckets.

    Raises:
        ValueError: it is neither, or a variable is in two groups.
    """
    if groups is None or groups == 0:
        return {}
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        size, extra = divmod(len(variables), groups)
        bounds = [i * size + min(i, extra) for i in range(groups + 1)]
        return {id(v): number for number in range(groups) for v in variables[bounds[number] : bounds[number + 1]]}
    if not isinstance(groups, (list, tuple)) or not all(isinstance(g, (list, tuple)) for g in groups):
        raise ValueError(f"groups={groups!r}; a non-negative integer or a list of lists of keras.Variable is expected; pass e.g. groups=2")
    numbered: dict[int, int] = {}
    for number, members in enumerate(groups):
        for variable in members:
            if id(variable) in numbered:
                raise ValueError(f"{path_of(variable)!r} is in two groups; a variable can only appear once in groups; leave it in one")
            numbered[id(variable)] = number
    return numbered


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
