"""``horovod.torch.elastic.sampler`` is ``hvdlite.torch.elastic.sampler``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.elastic.sampler import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.elastic.sampler")
