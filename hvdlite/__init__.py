"""hvdlite: data-parallel training with gradient compression.

Frameworks have adapters (``import hvdlite.torch as hvd``); what is here works on numpy arrays and is what the adapters stand on.
"""

from .arrays import Array
from .buckets import GradientBuckets, Parameter
from .collectives import (
    allgather,
    allgather_async,
    allgather_object,
    allreduce,
    allreduce_async,
    as_compressor,
    barrier,
    broadcast,
    broadcast_async,
    broadcast_object,
)
from .compression import Compressor, ErrorFeedback
from .engine import Handle
from .errors import (
    CompressionError,
    DuplicateNameError,
    HorovodInternalError,
    HvdliteError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
    SettingError,
    StalledError,
    WorldSizeError,
)
from .operations import Average, Max, Min, Product, ReduceOp, Sum
from .world import (
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
    world,
)

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Average",
    "CompressionError",
    "Compressor",
    "DuplicateNameError",
    "ErrorFeedback",
    "GradientBuckets",
    "Handle",
    "HorovodInternalError",
    "HvdliteError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "Parameter",
    "PeerLeftError",
    "Product",
    "ReduceOp",
    "SettingError",
    "StalledError",
    "Sum",
    "WorldSizeError",
    "__version__",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "as_compressor",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "rank",
    "shutdown",
    "size",
    "world",
]
