"""The collectives on tensors, variables and ``tf.IndexedSlices``, with Horovod's names and arguments: eagerly, in a graph, and with gradients.

``device_dense``, ``device_sparse`` and ``ignore_name_scope`` are Horovod's, and change nothing. Without a ``name``, the n-th unnamed call of a kind
belongs together on all ranks; in a graph, calls are counted when they are traced.
"""

from .allgather import allgather, grouped_allgather
from .allreduce import allreduce, grouped_allreduce
from .alltoall import alltoall
from .broadcast import broadcast, broadcast_
from .calls import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .reducescatter import grouped_reducescatter, reducescatter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
