"""Horovod's other name of :mod:`hvdlite.keras`: ``import hvdlite.tensorflow.keras as hvd``."""

from hvdlite.keras import *  # noqa: F403 - one list of names, in one place
from hvdlite.keras import __all__ as __all__
