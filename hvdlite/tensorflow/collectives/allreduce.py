"""Combine tensors of all ranks; ``tf.IndexedSlices`` by gathering their slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import hvdlite
from hvdlite import Average, ProcessSet, ReduceOp, SettingError, Sum, global_process_set

from ..compression import Compression, is_horovod_compressor
from ..tensors import plain_python
from .allgather import grouped_allgather
from .calls import part_of
from .reduction import reduced


@plain_python
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine a tensor over the ranks; returns a new one. Differentiable for Average and Sum.

    Args:
        tensor: a tensor or variable, the same shape and dtype on every rank; or ``tf.IndexedSlices``, whose slices are gathered.
        average: deprecated form of ``op``.
        device_dense: ignored.
        device_sparse: ignored.
        compression: a spec such as ``"fp16"``, ``Compression.x``, or a class with Horovod's ``compress`` and ``decompress``.
        op: Average (default), Sum, Min, Max or Product; for slices Average or Sum.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
        name: identifies the tensor across ranks.
        process_set: the ranks that take part.
        ignore_name_scope: ignored.
    """
    return grouped_allreduce([tensor], average, "", "", compression, op, prescale_factor, postscale_factor, process_set, name=name)[0]


@plain_python
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Combine tensors over the ranks, as one unit; returns new tensors. Differentiable for Average and Sum. See :func:`allreduce`."""
    op = _op(average, op)
    if any(isinstance(t, tf.IndexedSlices) for t in tensors):
        names = [part_of(name, i) for i in range(len(tensors))]
        factor = prescale_factor * postscale_factor
        return [
            _reduced_slices(t, op, factor, n, process_set)
            if isinstance(t, tf.IndexedSlices)
            else allreduce(t, None, "", "", compression, op, prescale_factor, postscale_factor, n, process_set)
            for t, n in zip(tensors, names, strict=True)
        ]
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    if is_horovod_compressor(compression):
        pairs = [compression.compress(t) for t in tensors]
        small = reduced([t for t, _ in pairs], op, prescale_factor, postscale_factor, None, name, process_set)
        return [compression.decompress(t, context) for t, (_, context) in zip(small, pairs, strict=True)]
    return reduced(tensors, op, prescale_factor, postscale_factor, compression, name, process_set)


def _op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else ReduceOp(op)


def _reduced_slices(slices: tf.IndexedSlices, op: ReduceOp, factor: float, name: str | None, process_set: ProcessSet) -> tf.IndexedSlices:
    """Gather indices and values: the sum is what they mean together."""
    if op not in (Average, Sum):
        raise SettingError(f"IndexedSlices are reduced with op={op.name}; Average or Sum is expected; convert them with tf.convert_to_tensor")
    indices, values = grouped_allgather([slices.indices, slices.values], name, process_set=process_set)
    values *= tf.cast(factor / (hvdlite.world().channel(process_set).topology.size if op is Average else 1), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
