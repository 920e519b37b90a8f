"""``horovod.tensorflow.functions`` is ``hvdlite.tensorflow.functions``."""

from hvdlite.as_horovod import forward
from hvdlite.tensorflow.functions import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.tensorflow.functions")
