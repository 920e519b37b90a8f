"""hvdlite's errors as TensorFlow's, too: programs written for Horovod catch ``tf.errors.FailedPreconditionError`` where ranks disagree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

import hvdlite

__all__ = ["InvalidArgumentError", "MismatchError", "NotSupportedError", "as_tensorflow_raises"]


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
