"""The reduction of dense tensors, and its gradient: what the other collectives' gradients are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, Average, ProcessSet, ReduceOp, SettingError, Sum

from ..compression import Compression
from .calls import Call, called, traced_name


def reduced(
    tensors: Sequence[tf.Tensor], op: ReduceOp, prescale: float, postscale: float, compression: Any, name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Combine tensors as one unit. Every rank's loss depends on every rank's input: the gradient is reduced the same way."""
    compressor = Compression.resolve(compression)
    name = traced_name(name, "allreduce", process_set)

    def communicate(*arrays: Array) -> Call:
        results = [np.array(a, order="C") for a in arrays]
        yield hvdlite.allreduce_async(
            results, name=name, op=op, prescale_factor=prescale, postscale_factor=postscale, compression=compressor, process_set=process_set
        )
        return results

    def reduce(*given: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            if op not in (Average, Sum):
                raise SettingError(f"the gradient of an allreduce with op={op.name} is not defined; Average or Sum is expected; use tf.stop_gradient first")
            return reduced(upstream, op, prescale, postscale, None, None, process_set)

        return called(communicate, given, [(t.dtype, t.shape) for t in given]), gradient

    return list(tf.custom_gradient(reduce)(*tensors))
