"""What each collective asks of the transport, step by step, and what ranks must agree on first: one collective a file.

Results are written into the arrays that were handed in, where a collective keeps the shape.
"""

from ._base import check_arrays
from ._reduction import Adasum, Average, Max, Min, Product, ReduceOp, Sum, check_compressible, check_reducible
from .allgather import AllGatherOperation, GroupedAllGatherOperation
from .allreduce import AllReduceOperation, Carrier
from .alltoall import AllToAllOperation
from .barrier import BarrierOperation
from .broadcast import BroadcastOperation
from .reducescatter import GroupedReduceScatterOperation, ReduceScatterOperation, shared_rows

__all__ = [
    "Adasum",
    "AllGatherOperation",
    "AllReduceOperation",
    "AllToAllOperation",
    "Average",
    "BarrierOperation",
    "BroadcastOperation",
    "Carrier",
    "GroupedAllGatherOperation",
    "GroupedReduceScatterOperation",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "ReduceScatterOperation",
    "Sum",
    "check_arrays",
    "check_compressible",
    "check_reducible",
    "shared_rows",
]
