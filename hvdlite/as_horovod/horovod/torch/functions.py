"""``horovod.torch.functions`` is ``hvdlite.torch.functions``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.functions import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.functions")
