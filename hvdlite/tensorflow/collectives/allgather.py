"""Concatenate tensors of all ranks: one, or a group that is only complete together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, Average, ProcessSet, SettingError, Sum, global_process_set

from ..tensors import plain_python
from .calls import Call, called, traced_name
from .reduction import reduced


@plain_python
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Concatenate the ranks' tensors along the first dimension, which may differ. Differentiable: this rank's rows get the mean over the ranks."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@plain_python
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gather several tensors as one unit. See :func:`allgather`."""
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise SettingError(
                f"{name or 'the tensor'} is a scalar; allgather concatenates along the first dimension, so at least one is expected; reshape it to (1,)"
            )
    name = traced_name(name, "grouped_allgather", process_set)
    place = hvdlite.world().channel(process_set).topology.rank

    def communicate(*arrays: Array) -> Call:
        found = yield hvdlite.grouped_allgather_async([np.array(a, order="C") for a in arrays], name=name, process_set=process_set)
        return [whole for whole, _ in found] + [np.array([sum(lengths[:place]), lengths[place]], np.int64) for _, lengths in found]

    def gather(*given: tf.Tensor) -> Any:
        outputs = [(t.dtype, tf.TensorShape([None]).concatenate(t.shape[1:])) for t in given]
        results = called(communicate, given, outputs + [(tf.int64, tf.TensorShape([2]))] * len(given))
        wholes, places = results[: len(given)], results[len(given) :]

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            means = reduced([tf.convert_to_tensor(g) for g in upstream], Average, 1.0, 1.0, None, None, process_set)
            return [mean[place[0] : place[0] + place[1]] for mean, place in zip(means, places, strict=True)]

        return wholes, gradient

    return list(tf.custom_gradient(gather)(*tensors))


@plain_python
def gather_rows(vector: tf.Tensor, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """The ranks' vectors of one length as the rows of a matrix, zeros for ranks that have joined.

    Every rank's loss depends on every row: the gradient is the sum over the ranks.
    """
    name, topology = traced_name(None, "rows", process_set), hvdlite.world().channel(process_set).topology
    shape = tf.TensorShape([topology.size, *vector.shape])

    def communicate(array: Array) -> Call:
        rows, lengths = yield hvdlite.allgather_async(np.array(array[np.newaxis], order="C"), name=name, process_set=process_set)
        everyones = np.zeros(shape, rows.dtype)  # those of ranks that have joined stay zero
        everyones[np.flatnonzero(lengths)] = rows
        return [everyones]

    def gather(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return reduced([upstream], Sum, 1.0, 1.0, None, None, process_set)[0][topology.rank]

        return called(communicate, [given], [(given.dtype, shape)])[0], gradient

    result: tf.Tensor = tf.custom_gradient(gather)(vector)
    return result
