"""Combine tensors of all ranks, and leave to each rank its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, Average, ProcessSet, ReduceOp, SettingError, Sum, global_process_set

from ..compression import Compression
from ..tensors import plain_python
from .allgather import grouped_allgather
from .calls import Call, called, traced_name


@plain_python
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Combine a tensor over the ranks, and leave to each its rows; returns a new tensor. Differentiable for Average and Sum.

    Args:
        tensor: the same shape and dtype on every rank, at least one dimension. Where its rows do not divide evenly, the first ranks get one more.
        device_dense: ignored.
        compression: a class with Horovod's ``compress`` and ``decompress``, ``Compression.none`` or ``Compression.fp16``.
        op: Average, Sum, Min, Max or Product.
        name: identifies the tensor across ranks.
        process_set: the ranks that take part.
        ignore_name_scope: ignored.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
    """
    return _shares([tensor], compression, op, name, process_set, prescale_factor, postscale_factor)[0]


@plain_python
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Combine tensors over the ranks as one unit, and leave to each rank its rows of each. See :func:`reducescatter`."""
    return _shares(tensors, compression, op, name, process_set, prescale_factor, postscale_factor)


def _shares(
    tensors: Sequence[Any],
    compression: Any,
    op: ReduceOp,
    name: str | None,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> list[tf.Tensor]:
    if not callable(getattr(compression, "compress", None)):
        raise SettingError(
            f"compression={compression!r} for a reducescatter; Compression.none, Compression.fp16 or a class with Horovod's compress and decompress is "
            "expected, since hvdlite's compressors exchange whole tensors; pass one of those"
        )
    pairs = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
    results = _scattered([t for t, _ in pairs], ReduceOp(op), prescale, postscale, name, process_set)
    return [compression.decompress(t, context) for t, (_, context) in zip(results, pairs, strict=True)]


def _scattered(tensors: Sequence[tf.Tensor], op: ReduceOp, prescale: float, postscale: float, name: str | None, process_set: ProcessSet) -> list[tf.Tensor]:
    """Every rank is sent the gradients of all shares; with Sum they count as often as there are ranks, as in Horovod."""
    name = traced_name(name, "grouped_reducescatter", process_set)
    num_ranks = hvdlite.world().channel(process_set).topology.size

    def communicate(*arrays: Array) -> Call:
        given = [np.array(a, order="C") for a in arrays]
        found: list[Array] = yield hvdlite.grouped_reducescatter_async(
            given, name=name, op=op, prescale_factor=prescale, postscale_factor=postscale, process_set=process_set
        )
        return found

    def scatter(*given: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            if op not in (Average, Sum):
                raise SettingError(f"the gradient of a reducescatter with op={op.name} is not defined; Average or Sum is expected; use tf.stop_gradient first")
            factor = prescale * postscale * (num_ranks if op is Sum else 1)
            return [whole * tf.cast(factor, whole.dtype) for whole in grouped_allgather(upstream, process_set=process_set)]

        return called(communicate, given, [(t.dtype, tf.TensorShape([None]).concatenate(t.shape[1:])) for t in given]), gradient

    return list(tf.custom_gradient(scatter)(*tensors))
