"""hvdlite for Keras 3, on each of its backends: ``import hvdlite.keras as hvd``. Names, arguments and defaults are Horovod's."""

from hvdlite import (
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

from .compression import Compression
from .optimizer import DistributedOptimizer, compression_state_dict, load_compression_state_dict, load_model
from .variables import allgather, allreduce, broadcast, broadcast_global_variables, broadcast_variables
