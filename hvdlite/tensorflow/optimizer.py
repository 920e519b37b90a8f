"""``DistributedOptimizer``: TensorFlow's optimizers are Keras', and so is this one."""

from __future__ import annotations

from typing import Any

from hvdlite import Average, ProcessSet, ReduceOp, global_process_set

from .compression import Compression


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
        optimizer: any Keras optimizer, also a ``LossScaleOptimizer``.
        name: names the exchange in errors.
        use_locking: ignored, as are ``device_dense`` and ``device_sparse``.
        device_dense: ignored.
        device_sparse: ignored.
        compression: a spec such as ``"powersgd:rank=4"``, or ``Compression.x``.
        sparse_as_dense: ignored: Keras' optimizers get dense gradients.
        backward_passes_per_step: so many calls make one step; their gradients are added up and exchanged once.
        op: Average or Sum.
        gradient_predivide_factor: divide by this before the sum, and by the rest of the number of ranks after it.
        average_aggregated_gradients: divide their sum by ``backward_passes_per_step``.
        num_groups: deprecated form of ``groups``.
        groups: a number of groups, or lists of variables that must travel together.
        process_set: the ranks that exchange; on the others the optimizer steps on its own gradients.
        scale_local_gradients: ignored.
    """
    from hvdlite import keras  # only when it is wanted: that loads Keras

    return keras.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
