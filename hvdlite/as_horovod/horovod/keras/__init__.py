"""``horovod.keras`` is ``hvdlite.keras``."""

from hvdlite.as_horovod import forward, older_keras
from hvdlite.keras import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.keras")

older_keras.install()
