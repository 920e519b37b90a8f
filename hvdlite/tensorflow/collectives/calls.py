"""How a collective is called: on arrays now, or by the graph that is being traced; and what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, ProcessSet

from ..tensors import as_array, is_tracing, plain_python, refuse_xla

UNKNOWN_SET = -3
"""Horovod's answer where there is no such process set."""


def called(communicate: Callable[..., list[Array]], tensors: Sequence[tf.Tensor], outputs: Sequence[tuple[tf.DType, tf.TensorShape]]) -> list[tf.Tensor]:
    """Run on arrays: now, or whenever the graph that is being traced comes to it."""
    if not is_tracing():
        return [tf.constant(a) for a in communicate(*map(as_array, tensors))]
    refuse_xla("a collective")
    results = tf.numpy_function(communicate, tensors, [dtype for dtype, _ in outputs])
    return [tf.ensure_shape(r, shape) for r, (_, shape) in zip(results, outputs, strict=True)]


def traced_name(name: str | None, kind: str, process_set: ProcessSet) -> str | None:
    """In a graph a call needs its name when it is traced; elsewhere the core counts.

    Raises:
        ProcessSetError: this rank is not in the set; at once, not when the graph runs.
    """
    channel = hvdlite.world().channel(process_set)
    return channel.auto_name(kind) if name is None and is_tracing() else name


def part_of(name: str | None, part: object) -> str | None:
    """The name of a part of a call; none if the call has none."""
    return None if name is None else f"{name}.{part}"


def _number_op(number: Callable[[], int], name: str | None) -> tf.Tensor:
    with tf.name_scope(name or "hvdlite"):
        return tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32, stateful=False), ())


@plain_python
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of processes in a set, when the graph runs; -3 where there is no such set then."""
    return _number_op(lambda: len(_ranks(process_set_id) or ()) or UNKNOWN_SET, name)


@plain_python
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this process is in a set when the graph runs, 0 where it is not, -3 where there is no such set."""

    def included() -> int:
        ranks = _ranks(process_set_id)
        return UNKNOWN_SET if ranks is None else int(hvdlite.rank() in ranks)

    return _number_op(included, name)


def _ranks(process_set_id: int) -> list[int] | None:
    return hvdlite.get_process_set_ids_and_ranks().get(process_set_id)


@plain_python
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of processes on this node, when the graph runs."""
    return _number_op(hvdlite.local_size, name)


@plain_python
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number, when the graph runs."""
    return _number_op(hvdlite.rank, name)


@plain_python
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number on its node, when the graph runs."""
    return _number_op(hvdlite.local_rank, name)
