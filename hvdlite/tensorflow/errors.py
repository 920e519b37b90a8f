"""hvdlite's errors as TensorFlow's, too: programs written for Horovod catch ``tf.errors.FailedPreconditionError`` where ranks disagree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

import hvdlite

__all__ = ["NO_PROBLEM", "InvalidArgumentError", "MismatchError", "NotSupportedError", "as_tensorflow_raises", "problem_of", "unless"]

NO_PROBLEM = b"/dev/null"


class MismatchError(hvdlite.MismatchError, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """Ranks disagree about a tensor."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class InvalidArgumentError(hvdlite.SettingError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """An argument has a value that cannot be used."""

    def __init__(self, message: str):
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class NotSupportedError(hvdlite.SettingError, NotImplementedError):
    """What Horovod raises NotImplementedError for."""


@contextmanager
def as_tensorflow_raises() -> Iterator[None]:
    """Raise hvdlite's errors as classes that are TensorFlow's as well."""
    try:
        yield
    except hvdlite.MismatchError as error:
        raise MismatchError(str(error)) from error
    except hvdlite.SettingError as error:
        raise InvalidArgumentError(str(error)) from error


def problem_of(error: hvdlite.MismatchError) -> bytes:
    """What a function in the graph of a session returns for :func:`unless`."""
    return NO_PROBLEM + b"/" + str(error).encode()[:_LONGEST_BYTES]


def unless(problem: tf.Tensor) -> tf.Operation:
    """An operation of a session's graph that fails with ``FailedPreconditionError`` if there is a problem, as programs written for Horovod expect.

    TensorFlow makes ``UnknownError`` of what a function in a graph raises. The one operation that fails with the other code and a text that
    is not known before is opening a file below something that is no folder. So the text comes between ``/dev/null/`` and ``Not a directory``.
    """
    contents = tf.io.read_file(problem)
    return tf.raw_ops.Assert(condition=tf.equal(contents, ""), data=[contents])  # TensorFlow leaves out a reading that nothing uses


_LONGEST_BYTES = 4000
"""Longer paths fail with another code."""
