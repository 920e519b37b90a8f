"""How a collective is called: on arrays now, or by the graph that is being traced; and what all of them have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, MismatchError, ProcessSet

from ..errors import NO_PROBLEM, as_tensorflow_raises, problem_of, unless
from ..tensors import apart, as_array, is_for_session, is_tracing, plain_python, refuse_xla

Call: TypeAlias = Generator[hvdlite.Handle, Any, list[Array]]
"""A collective on arrays: yields the handle to wait for, is sent its result, and returns arrays."""

UNKNOWN_SET = -3
"""Horovod's answer where there is no such process set."""


def called(communicate: Callable[..., Call], tensors: Sequence[tf.Tensor], outputs: Sequence[tuple[tf.DType, tf.TensorShape]]) -> list[tf.Tensor]:
    """Run on arrays: now, or whenever the graph that is being built comes to it."""

    if not is_tracing():
        with as_tensorflow_raises():
            call = communicate(*map(as_array, tensors))
            return [tf.constant(a) for a in _ended(call, next(call))]
    refuse_xla("a collective")
    dtypes = [dtype for dtype, _ in outputs]
    if not is_for_session():
        results = _in_graph(communicate, tensors, dtypes, _ended)
        return [tf.ensure_shape(r, shape) for r, (_, shape) in zip(results, outputs, strict=True)]
    *results, problem = _in_graph(communicate, tensors, [*dtypes, tf.string], partial(_ended_or_problem, dtypes))
    with tf.control_dependencies([unless(problem)]):
        return [tf.ensure_shape(r, shape) for r, (_, shape) in zip(results, outputs, strict=True)]


def _in_graph(
    communicate: Callable[..., Call], tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], ended: Callable[[Call, hvdlite.Handle], list[Any]]
) -> list[tf.Tensor]:
    """One function submits and returns at once; another waits, in no thread of TensorFlow's: see :func:`apart`. So order does not matter."""
    under_way: dict[int, tuple[Call, hvdlite.Handle]] = {}
    numbers = itertools.count()

    def begin(*arrays: Array) -> Array:
        for _, handle in list(under_way.values()):  # those of earlier rounds of a loop; names in flight are unique
            handle.settle()
        call, number = communicate(*arrays), next(numbers)
        under_way[number] = call, next(call)
        return np.int64(number)

    def end(number: Array) -> list[Any]:
        return ended(*under_way.pop(int(number)))

    return apart(end, tf.numpy_function(begin, tensors, tf.int64), dtypes)


def _ended(call: Call, handle: hvdlite.Handle) -> list[Array]:
    """Wait, and take the call to its end."""
    try:
        call.send(handle.wait())
    except StopIteration as stop:
        found: list[Array] = stop.value
        return found
    raise AssertionError("a call waits once")


def _ended_or_problem(dtypes: Sequence[tf.DType], call: Call, handle: hvdlite.Handle) -> list[Any]:
    """The results and that there is no problem; or nothing and the problem."""
    try:
        return [*_ended(call, handle), NO_PROBLEM]
    except MismatchError as error:
        return [*(np.zeros(0, dtype.as_numpy_dtype) for dtype in dtypes), problem_of(error)]


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
