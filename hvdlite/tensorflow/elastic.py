"""Elastic training with TensorFlow: ``hvd.elastic``. Names, arguments and meaning are Horovod's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import elastic
from hvdlite.elastic import ObjectState, State
from hvdlite.errors import DuplicateNameError, EngineError, HorovodInternalError, MismatchError, PeerLeftError, SettingError, StalledError

from .functions import broadcast_object, broadcast_variables

if TYPE_CHECKING:
    from hvdlite.keras.elastic import TensorFlowKerasState
else:

    def __getattr__(name):
        if name == "TensorFlowKerasState":
            from hvdlite.keras.elastic import TensorFlowKerasState  # only when it is wanted: that loads Keras

            return TensorFlowKerasState
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["State", "TensorFlowKerasState", "TensorFlowState", "run"]

R = TypeVar("R")

_FAILURES = {kind.__name__: kind for kind in (HorovodInternalError, MismatchError, DuplicateNameError, PeerLeftError, StalledError, EngineError)}


def run(func: Callable[..., R]) -> Callable[..., R]:
    """:func:`hvdlite.elastic.run`, which also knows a failed collective by the error that comes out of a graph."""

    @functools.wraps(func)
    def guarded(*args: Any, **kwargs: Any) -> R:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            kind = next((kind for name, kind in _FAILURES.items() if f"{name}: " in str(error)), None)
            if kind is None:
                raise
            raise kind(str(error)) from error

    return elastic.run(guarded)


class TensorFlowState(ObjectState):
    """A list of variables, and plain objects: ``TensorFlowState(variables, epoch=0)``.

    Args:
        variables: TensorFlow's or Keras' variables, in the same order on every rank.
        session: sessions of TensorFlow 1 are not supported; only None.
        kwargs: names and first values of plain objects.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any):
        if session is not None:
            raise SettingError(f"session={session!r}; hvdlite runs TensorFlow 2 eagerly or in tf.function; leave it out")
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        if not self.variables:
            raise SettingError("TensorFlowState has no variables, and TensorFlow 2 keeps no list of them; pass a list, e.g. model.variables")
        self._save_variables()
        super().__init__(broadcast_object, hvdlite.rank, **kwargs)

    def save(self) -> None:
        """Copy the variables and the objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Assign the copies."""
        for variable, value in zip(self.variables, self._saved_variables, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give every rank the variables and objects of rank 0, and save them."""
        broadcast_variables(self.variables, root_rank=0)
        self._save_variables()
        super().sync()

    def snapshot(self) -> Any:
        """The copies."""
        return self._saved_variables, super().snapshot()

    def load_snapshot(self, saved: Any) -> None:
        """Assign them."""
        self._saved_variables, plain = saved
        super().load_snapshot(plain)
        self.restore()

    def _save_variables(self) -> None:
        self._saved_variables = [np.array(variable.numpy()) for variable in self.variables]
