"""``horovod.keras.callbacks`` is ``hvdlite.keras.callbacks``."""

from hvdlite.as_horovod import forward
from hvdlite.keras.callbacks import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.keras.callbacks")
