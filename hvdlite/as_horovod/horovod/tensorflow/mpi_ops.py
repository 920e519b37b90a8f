"""``horovod.tensorflow.mpi_ops`` is ``hvdlite.tensorflow``."""

from hvdlite.as_horovod import forward
from hvdlite.tensorflow import *  # noqa: F403 - whatever is public there

from ..common.basics import HorovodBasics

_basics = HorovodBasics()
__getattr__ = forward(__name__, "hvdlite.tensorflow")
