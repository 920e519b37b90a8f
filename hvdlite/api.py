"""The public names of hvdlite, in one list. ``import hvdlite`` gives them, and loads this module when the first one is used."""

import sys

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

sys.modules[__package__].world = world  # type: ignore[attr-defined]  # the submodule of that name would hide the function
