"""``horovod.torch.elastic`` is ``hvdlite.torch.elastic``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.elastic import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.elastic")
