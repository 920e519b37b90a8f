"""``horovod.tensorflow`` is ``hvdlite.tensorflow``."""

from hvdlite.as_horovod import forward, older_keras
from hvdlite.tensorflow import *  # noqa: F403 - whatever is public there

from . import mpi_ops as mpi_ops
from .util import _executing_eagerly as _executing_eagerly

__getattr__ = forward(__name__, "hvdlite.tensorflow")

older_keras.install()
