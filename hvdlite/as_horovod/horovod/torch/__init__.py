"""``horovod.torch`` is ``hvdlite.torch``."""

from hvdlite.as_horovod import forward
from hvdlite.torch import *  # noqa: F403 - whatever is public there

from . import mpi_ops as mpi_ops

__getattr__ = forward(__name__, "hvdlite.torch")
