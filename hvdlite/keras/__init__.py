"""hvdlite for Keras 3, on each of its backends: ``import hvdlite.keras as hvd``. Names, arguments and defaults are Horovod's."""

from hvdlite import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    ProcessSet,
    ProcessSetError,
    Product,
    ReduceOp,
    Sum,
    add_process_set,
    allgather_object,
    barrier,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    get_process_set_ids_and_ranks,
    global_process_set,
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
    remove_process_set,
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

from . import callbacks, elastic
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
    "ProcessSet",
    "ProcessSetError",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
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
    "elastic",
    "get_process_set_ids_and_ranks",
    "global_process_set",
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
    "remove_process_set",
    "report",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
