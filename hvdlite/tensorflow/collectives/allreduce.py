"""Combine tensors of all ranks; ``tf.IndexedSlices`` by gathering their slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdlite import Average, ProcessSet, ReduceOp, Sum, global_process_set

from ..compression import Compression, is_horovod_compressor
from ..errors import NotSupportedError
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
        op: Average (default), Sum, Adasum, Min, Max or Product; for slices Average or Sum. The average of slices with whole numbers is not rounded.
        prescale_factor: multiplies before the reduction; not for slices.
        postscale_factor: multiplies after it; not for slices.
        name: identifies the tensor across ranks.
        process_set: the ranks that take part.
        ignore_name_scope: ignored.
    Raises:
        MismatchError: the ranks' tensors differ; also a ``tf.errors.FailedPreconditionError``. A graph raises an error of TensorFlow's that quotes it.
        NotImplementedError: something that slices cannot do.
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
        check_slices(op, prescale_factor, postscale_factor)
        return [
            reduced_slices(t, op, n, process_set)
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


def check_slices(op: ReduceOp, prescale_factor: float, postscale_factor: float) -> None:
    """Raise for what slices cannot do, as Horovod does.

    Raises:
        NotSupportedError: it is a NotImplementedError.
    """
    if op not in (Average, Sum):
        raise NotSupportedError(f"IndexedSlices are reduced with op={op.name}; Average or Sum is expected; convert them with tf.convert_to_tensor")
    if (prescale_factor, postscale_factor) != (1.0, 1.0):
        raise NotSupportedError(
            f"IndexedSlices with prescale_factor={prescale_factor} and postscale_factor={postscale_factor}; no factors are expected; "
            "multiply their values, or convert them with tf.convert_to_tensor"
        )


def reduced_slices(slices: tf.IndexedSlices, op: ReduceOp, name: str | None, process_set: ProcessSet) -> tf.IndexedSlices:
    """Gather indices and values: the sum is what they mean together."""
    indices, values, ones = grouped_allgather([slices.indices, slices.values, tf.ones((1,), tf.int32)], name, process_set=process_set)
    if op is Average:
        values = tf.truediv(values, tf.cast(tf.size(ones), values.dtype))  # by the number of those that take part
    return tf.IndexedSlices(values, indices, slices.dense_shape)
