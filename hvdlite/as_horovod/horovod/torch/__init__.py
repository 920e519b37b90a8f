"""``horovod.torch`` is ``hvdlite.torch``."""

from hvdlite.as_horovod import forward
from hvdlite.torch import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch")
