"""``horovod.tensorflow.keras`` is ``hvdlite.tensorflow.keras``."""

from hvdlite.as_horovod import forward, older_keras
from hvdlite.tensorflow.keras import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.tensorflow.keras")

older_keras.install()
