"""What this installation can do, by Horovod's names: scripts ask before they choose."""

from __future__ import annotations

from importlib.util import find_spec

from .transports import mpi
from .world import is_initialized, topology


def mpi_built() -> bool:
    """Whether ranks can talk through MPI: mpi4py is installed."""
    return find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Whether this job's ranks talk through MPI. False before :func:`hvdlite.init`, and alone."""
    return is_initialized() and topology().size > 1


def mpi_threads_supported() -> bool:
    """Whether the program's own threads may call MPI beside hvdlite.

    Raises:
        NotInitializedError: before :func:`hvdlite.init`.
    """
    topology()
    return mpi.allows_threads()


def gloo_built() -> bool:
    """False: hvdlite has no Gloo."""
    return False


def gloo_enabled() -> bool:
    """False: hvdlite has no Gloo."""
    return False


def nccl_built() -> int:
    """The version of NCCL in use; 0: this version of hvdlite has none."""
    return 0


def ddl_built() -> bool:
    """False: hvdlite has no DDL."""
    return False


def ccl_built() -> bool:
    """False: hvdlite has no oneCCL."""
    return False


def cuda_built() -> bool:
    """False: this version of hvdlite exchanges tensors in main memory."""
    return False


def rocm_built() -> bool:
    """False: this version of hvdlite exchanges tensors in main memory."""
    return False
