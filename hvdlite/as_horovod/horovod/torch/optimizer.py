"""``horovod.torch.optimizer`` is ``hvdlite.torch.optimizer``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.optimizer import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.optimizer")
