"""``horovod.tensorflow.compression`` is ``hvdlite.tensorflow.compression``."""

from hvdlite.as_horovod import forward
from hvdlite.tensorflow.compression import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.tensorflow.compression")
