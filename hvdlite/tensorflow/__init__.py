"""hvdlite for TensorFlow: ``import hvdlite.tensorflow as hvd``. Names, arguments and defaults are Horovod's."""

from importlib.util import find_spec

from hvdlite import (
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    barrier,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    rank,
    shutdown,
    size,
)
from hvdlite.errors import MissingDependencyError

if find_spec("tensorflow") is None:
    raise MissingDependencyError("TensorFlow is not installed, and hvdlite.tensorflow stands on it; tensorflow>=2.16 is expected; pip install tensorflow")

from .collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    local_rank_op,
    local_size_op,
    rank_op,
    reducescatter,
    size_op,
)
from .compression import Compression
from .functions import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables
from .optimizer import DistributedOptimizer
from .strategy import MirroredStrategy
from .sync_batch_norm import SyncBatchNormalization
from .tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "MirroredStrategy",
    "PartialDistributedGradientTape",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "metrics",
    "rank",
    "rank_op",
    "reducescatter",
    "shutdown",
    "size",
    "size_op",
]
