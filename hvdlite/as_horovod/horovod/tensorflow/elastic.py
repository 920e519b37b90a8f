"""``horovod.tensorflow.elastic`` is ``hvdlite.tensorflow.elastic``."""

from hvdlite.as_horovod import forward
from hvdlite.tensorflow.elastic import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.tensorflow.elastic")
