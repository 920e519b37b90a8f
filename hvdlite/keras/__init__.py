"""hvdlite for Keras 3, on each of its backends: ``import hvdlite.keras as hvd``. Names, arguments and defaults are Horovod's."""

from hvdlite import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    report,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvdlite.errors import MissingDependencyError

try:
    import keras as _keras
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"{error.name} is not installed, and hvdlite.keras stands on Keras and the backend that KERAS_BACKEND names (tensorflow if it is not set); "
        "keras>=3 and that backend are expected; pip install keras and tensorflow, torch or jax"
    ) from error
if not hasattr(_keras, "ops"):
    raise MissingDependencyError(f"Keras {_keras.__version__} is too old; keras>=3 is expected; pip install --upgrade keras")

from . import callbacks
from .compression import Compression
from .data_parallel import DataParallel
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer, compression_state_dict, load_compression_state_dict, load_model
from .sharding import shard
from .variables import allgather, allreduce, broadcast, broadcast_global_variables, broadcast_variables, reducescatter

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DataParallel",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "compression_state_dict",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_compression_state_dict",
    "load_model",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "report",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
