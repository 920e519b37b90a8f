"""``horovod.torch.elastic.state`` is ``hvdlite.torch.elastic.state``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.elastic.state import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.elastic.state")
