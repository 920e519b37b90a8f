"""``horovod.torch.sync_batch_norm`` is ``hvdlite.torch.sync_batch_norm``."""

from hvdlite.as_horovod import forward
from hvdlite.torch.sync_batch_norm import *  # noqa: F403 - whatever is public there

__getattr__ = forward(__name__, "hvdlite.torch.sync_batch_norm")
