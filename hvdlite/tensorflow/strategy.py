"""``MirroredStrategy``: programs written for ``tf.distribute`` on hvdlite's ranks, one replica a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

import hvdlite
from hvdlite import Average, Parameter, Sum
from hvdlite.agreement import override

from .collectives import allgather, broadcast, grouped_allreduce
from .compression import Compression
from .gradients import GradientExchange
from .variables import dtype_of


class MirroredStrategy(tf.distribute.Strategy):  # type: ignore[misc]
    """A ``tf.distribute.Strategy`` whose replicas are the ranks of the job: ``scope``, ``run``, ``reduce``, ``gather`` and data sets as there.

    Variables made in its scope start with the values of rank 0. What ``tf.distribute.get_replica_context().all_reduce`` is given as a list of
    floating tensors, as Keras' optimizers do with their gradients, travels in buckets, compressed if wanted.

    Args:
        compression: a spec such as ``"powersgd:rank=4"``, or ``Compression.x``; ``HVDLITE_COMPRESSION`` replaces it.
        device: where this rank computes.
    """

    def __init__(self, compression: Any = Compression.none, device: str = "/cpu:0"):
        hvdlite.world()
        super().__init__(_Extended(self, device, override(compression, Compression.resolve(compression))))


class _Extended(OneDeviceExtended):  # type: ignore[misc]
    """One device here, and the collectives of hvdlite where replicas meet."""

    def __init__(self, strategy: MirroredStrategy, device: str, compression: Any):
        super().__init__(strategy, device)
        self._compression = compression
        self._exchanges: dict[Hashable, GradientExchange] = {}

    # --- variables ---

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial, dtype = kwargs["initial_value"], kwargs.get("dtype")

        def of_the_root() -> tf.Tensor:
            value = tf.convert_to_tensor(initial() if callable(initial) else initial, dtype)
            return value if value.dtype == tf.string or hvdlite.size() == 1 else broadcast(value, 0)

        return super()._create_variable(next_creator, **kwargs | {"initial_value": of_the_root})

    def _replica_ctx_update(self, var: Any, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None, group: bool = True) -> Any:
        return self._update(var, fn, tuple(args), kwargs or {}, group)

    # --- replicas ---

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with tf.device(self._device), tf.distribute.ReplicaContext(self._container_strategy(), replica_id_in_sync_group=hvdlite.rank()):
            return fn(*args, **kwargs)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return 0

    @property
    def _num_replicas_in_sync(self) -> int:
        return hvdlite.size()

    @property
    def should_checkpoint(self) -> bool:
        """Rank 0 writes."""
        return hvdlite.rank() == 0

    @property
    def should_save_summary(self) -> bool:
        """Rank 0 writes."""
        return hvdlite.rank() == 0

    # --- where they meet ---

    def _use_merge_call(self) -> bool:
        return False

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        flat = tf.nest.flatten(value)
        op = Average if tf.distribute.ReduceOp(reduce_op) is tf.distribute.ReduceOp.MEAN else Sum
        are_gradients = len(flat) > 1 and all(isinstance(t, tf.IndexedSlices) or t.dtype.is_floating for t in flat)
        reduced = self._exchange_of(flat, op).exchange(flat) if are_gradients else grouped_allreduce(flat, op=op)
        return tf.nest.pack_sequence_as(value, reduced)

    def _exchange_of(self, gradients: Sequence[Any], op: Any) -> GradientExchange:
        """The one exchange of gradients of these shapes: variables are not known here."""
        parameters = [Parameter(f"gradient.{i}", tuple(g.shape), dtype_of(g)) for i, g in enumerate(gradients)]
        key = (op, tuple(parameters))
        if key not in self._exchanges:
            self._exchanges[key] = GradientExchange(hvdlite.world().auto_name("strategy"), parameters, self._compression, op=op)
        return self._exchanges[key]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        op = Average if tf.distribute.ReduceOp(reduce_op) is tf.distribute.ReduceOp.MEAN else Sum
        return grouped_allreduce([value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)], op=op)[0]

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        first = [axis, *(i for i in range(value.shape.rank) if i != axis)]
        back = [first.index(i) for i in range(value.shape.rank)]
        return tf.transpose(allgather(tf.transpose(value, first)), back)

    # --- data ---

    def _experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any) -> tf.data.Dataset:
        """Of every batch, this rank's share: rows ``[rows * rank // size, rows * (rank + 1) // size)``."""
        rank, size = hvdlite.rank(), hvdlite.size()

        def share(*batch: Any) -> Any:
            parts = tf.nest.map_structure(lambda t: t[tf.shape(t)[0] * rank // size : tf.shape(t)[0] * (rank + 1) // size], batch)
            return parts if len(parts) > 1 else parts[0]

        return dataset if size == 1 else dataset.map(share, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _distribute_datasets_from_function(self, dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset], options: Any) -> tf.data.Dataset:
        """What the function makes for this rank."""
        return dataset_fn(tf.distribute.InputContext(hvdlite.size(), hvdlite.rank(), hvdlite.size()))
