"""What differs between Keras's backends: a file each, named as in ``KERAS_BACKEND``, with a subclass ``BackendExchange`` of ``Exchange``."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

import keras

from hvdlite import SettingError

if TYPE_CHECKING:
    from ..exchange import Exchange


def names() -> list[str]:
    """The backends that hvdlite exchanges gradients of."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def exchange_class() -> type[Exchange]:
    """That of the backend Keras runs on.

    Raises:
        SettingError: hvdlite knows no such backend.
    """
    backend = keras.backend.backend()
    if backend not in names():
        raise SettingError(f"Keras runs on the backend {backend!r}; one of {', '.join(names())} is expected; set KERAS_BACKEND before keras is imported")
    found: type[Exchange] = import_module(f"{__name__}.{backend}").BackendExchange
    return found
