"""``horovod.common.elastic`` is ``hvdlite.elastic``."""

from hvdlite.as_horovod import forward
from hvdlite.elastic import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.elastic")
