"""``horovod.torch.mpi_ops`` is ``hvdlite.torch``."""

from hvdlite.as_horovod import forward
from hvdlite.torch import *  # noqa: F403 - whatever is public there

from ..common.basics import HorovodBasics

_basics = HorovodBasics()
__getattr__ = forward(__name__, "hvdlite.torch")
