"""``horovod.keras.elastic`` is ``hvdlite.keras.elastic``."""

from hvdlite.as_horovod import forward
from hvdlite.keras.elastic import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.keras.elastic")
