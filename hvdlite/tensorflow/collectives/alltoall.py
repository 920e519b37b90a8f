"""Send rows of a tensor to each rank, and receive some from each."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, ProcessSet, global_process_set

from ..tensors import plain_python
from .calls import Call, called, traced_name


@plain_python
def alltoall(tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set) -> Any:
    """Send consecutive rows to each rank, and receive theirs in the order of ranks. Differentiable.

    Args:
        tensor: at least one dimension; all but the first are the same on every rank.
        splits: whole numbers of rows for each rank, together as many as there are; without it, equally many for each.
        name: identifies the call across ranks.
        ignore_name_scope: ignored.
        process_set: the ranks that take part.
    Returns:
        A new tensor; with ``splits``, also how many rows came from each rank, int32.
    Raises:
        SettingError: the splits do not fit the tensor or the number of ranks. In a graph TensorFlow raises an error of its own that quotes it.
    """
    rows, lengths = _exchanged(tf.convert_to_tensor(tensor), splits, traced_name(name, "alltoall", process_set), process_set)
    return rows if splits is None else (rows, lengths)


def _exchanged(tensor: tf.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients go back where the rows came from."""
    numbers = [] if splits is None else [tf.convert_to_tensor(splits)]

    def communicate(array: Array, *splits: Array) -> Call:
        given = np.array(array, order="C")
        received, lengths = yield hvdlite.alltoall_async(given, splits[0] if splits else None, name=name, process_set=process_set)
        return [received, np.array(lengths, np.int32)]

    def exchange(given: tf.Tensor) -> Any:
        shapes = [tf.TensorShape([None]).concatenate(given.shape[1:]), tf.TensorShape([hvdlite.world().channel(process_set).topology.size])]
        received, lengths = called(communicate, [given, *numbers], list(zip([given.dtype, tf.int32], shapes, strict=True)))

        def gradient(upstream: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            return _exchanged(upstream, lengths, traced_name(None, "alltoall", process_set), process_set)[0]

        return (received, lengths), gradient

    result: tuple[tf.Tensor, tf.Tensor] = tf.custom_gradient(exchange)(tensor)
    return result
