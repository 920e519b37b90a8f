"""``DistributedOptimizer``: TensorFlow's optimizers are Keras', and so is this one; those of TensorFlow 1 have their own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdlite import Adasum, Average, ProcessSet, ReduceOp, global_process_set

from .compression import Compression
from .errors import NotSupportedError
from .sessions import SessionOptimizer, check_passes
from .tape import options_from


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a Keras optimizer step on the mean gradient of all ranks: :func:`hvdlite.keras.DistributedOptimizer`, with Horovod's order of arguments.

    With it, ``apply_gradients`` exchanges what a plain ``tf.GradientTape`` found. Use it, or a ``DistributedGradientTape``, not both.

    Args:
        optimizer: any Keras optimizer, also a ``LossScaleOptimizer``; or one of ``tf.compat.v1.train``, which exchanges in ``compute_gradients``.
        name: names the exchange in errors.
        use_locking: ignored by Keras' optimizers.
        device_dense: ignored.
        device_sparse: ignored.
        compression: a spec such as ``"powersgd:rank=4"``, or ``Compression.x``.
        sparse_as_dense: exchange ``IndexedSlices`` as dense tensors; Keras' optimizers always do.
        backward_passes_per_step: so many calls make one step; their gradients are added up and exchanged once.
        op: Average or Sum.
        gradient_predivide_factor: divide by this before the sum, and by the rest of the number of ranks after it.
        average_aggregated_gradients: divide their sum by ``backward_passes_per_step``.
        num_groups: deprecated form of ``groups``.
        groups: a number of groups, or lists of variables that must travel together.
        process_set: the ranks that exchange; on the others the optimizer steps on its own gradients.
        scale_local_gradients: divide gradients of variables given to the optimizer's ``register_local_var`` by the number of ranks.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if ReduceOp(op) is Adasum:
            raise NotSupportedError("op=Adasum with an optimizer of sessions; Average or Sum is expected; combine the gradients of a DistributedGradientTape")
        check_passes(backward_passes_per_step)
        options = options_from(compression, op, gradient_predivide_factor, num_groups, groups, sparse_as_dense, process_set)
        return SessionOptimizer(optimizer, name, use_locking, options, scale_local_gradients)
    from hvdlite import keras  # only when it is wanted: that loads Keras

    return keras.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
