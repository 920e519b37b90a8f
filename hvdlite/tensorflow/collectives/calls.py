"""How a collective is called: on arrays now, or by the graph that is being traced; and what all of them have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, MismatchError, SettingError

from ..errors import NO_PROBLEM, as_tensorflow_raises, problem_of, unless
from ..tensors import apart, as_array, is_for_session, is_tracing, plain_python, refuse_xla

Call: TypeAlias = Generator[hvdlite.Handle, Any, list[Array]]
"""A collective on arrays: yields the handle to wait for, is sent its result, and returns arrays."""


def called(communicate: Callable[..., Call], tensors: Sequence[tf.Tensor], outputs: Sequence[tuple[tf.DType, tf.TensorShape]]) -> list[tf.Tensor]:
    """Run on arrays: now, or whenever the graph that is being built comes to it."""

    if not is_tracing():
        with as_tensorflow_raises():
            call = communicate(*map(as_array, tensors))
            return [tf.constant(a) for a in _ended(call, next(call))]
    refuse_xla("a collective")
    dtypes = [*(dtype for dtype, _ in outputs), tf.string]
    *results, problem = _in_session(communicate, tensors, dtypes) if is_for_session() else _in_function(communicate, tensors, dtypes)
    with tf.control_dependencies([unless(problem)]):
        return [tf.ensure_shape(r, shape) for r, (_, shape) in zip(results, outputs, strict=True)]


def _in_function(communicate: Callable[..., Call], tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Functions of a graph run in the order in which they were traced, so one that waits keeps none from handing over."""

    def begin_and_end(*arrays: Array) -> list[Any]:
        call = communicate(*arrays)
        return _ended_or_problem(call, next(call), dtypes)

    found: list[tf.Tensor] = tf.numpy_function(begin_and_end, tensors, dtypes)
    return found


def _in_session(communicate: Callable[..., Call], tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """One function submits and returns at once; another waits, in no thread of the session's: see :func:`apart`."""
    under_way: dict[int, tuple[Call, hvdlite.Handle]] = {}
    numbers = itertools.count()

    def begin(*arrays: Array) -> Array:
        call, number = communicate(*arrays), next(numbers)
        under_way[number] = call, next(call)
        return np.int64(number)

    def end(number: Array) -> list[Any]:
        return _ended_or_problem(*under_way.pop(int(number)), dtypes)

    return apart(end, tf.numpy_function(begin, tensors, tf.int64), dtypes)


def _ended(call: Call, handle: hvdlite.Handle) -> list[Array]:
    """Wait, and take the call to its end."""
    try:
        call.send(handle.wait())
    except StopIteration as stop:
        found: list[Array] = stop.value
        return found
    raise AssertionError("a call waits once")


def _ended_or_problem(call: Call, handle: hvdlite.Handle, dtypes: Sequence[tf.DType]) -> list[Any]:
    """The results and that there is no problem; or nothing and the problem."""
    try:
        return [*_ended(call, handle), NO_PROBLEM]
    except MismatchError as error:
        return [*(np.zeros(0, dtype.as_numpy_dtype) for dtype in dtypes[:-1]), problem_of(error)]


def traced_name(name: str | None, kind: str) -> str | None:
    """In a graph a call needs its name when it is traced; elsewhere the core counts."""
    return hvdlite.world().auto_name(kind) if name is None and is_tracing() else name


def part_of(name: str | None, part: object) -> str | None:
    """The name of a part of a call; none if the call has none."""
    return None if name is None else f"{name}.{part}"


def check_process_set(process_set: Any) -> None:
    """Raise for anything but the set of all ranks.

    Raises:
        SettingError: another set is given.
    """
    if process_set is not None and getattr(process_set, "process_set_id", None) != 0:
        raise SettingError(f"process_set={process_set!r} given; this version of hvdlite has only the global set; leave it out")


def _number_op(number: Callable[[], int], name: str | None) -> tf.Tensor:
    with tf.name_scope(name or "hvdlite"):
        return tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32, stateful=False), ())


@plain_python
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of processes, when the graph runs."""
    return _number_op(hvdlite.size, name)


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
