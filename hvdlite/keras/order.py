"""Where a callback stands among the others of a ``fit``: those that judge metrics must see the averages, so they come after it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import keras

import hvdlite
from hvdlite import SettingError


def check_judges_follow(callback: Any) -> None:
    """Raise when a callback that judges a metric (it has a ``monitor``) comes before ``callback``, which averages them. For ``set_model``.

    Raises:
        SettingError: on each rank whose list is in that order; with one rank any order will do.
    """
    if hvdlite.size() == 1:
        return
    before = _others_before(callback)
    judge = next((other for other in before if hasattr(other, "monitor")), None)
    if judge is not None:
        name = type(callback).__name__
        order = ", ".join(type(other).__name__ for other in [*before, callback])
        raise SettingError(
            f"callbacks are in the order {order}, so {type(judge).__name__}(monitor={judge.monitor!r}) would judge the metrics of its own rank, and ranks "
            f"would decide differently; callbacks that judge metrics are expected after {name}; put {name} first in the list"
        )


def _others_before(callback: Any) -> Sequence[Any]:
    """Keras tells a callback nothing about the others: the list is what calls it."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            others = list(caller.callbacks)
            return others[: next((i for i, other in enumerate(others) if other is callback), 0)]
        frame = frame.f_back
    return ()
