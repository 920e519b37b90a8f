"""``horovod.torch.compression`` is ``hvdlite.torch.compression``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.compression import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.compression")
