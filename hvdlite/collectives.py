"""The collectives on arrays, as a program calls them. The frameworks' adapters stand on these, and numpy users call them directly.

A ``name`` identifies a tensor across ranks: ranks may submit differently named tensors in any order. Without a name, the n-th unnamed
call of a kind belongs together on all ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Array, dtype_name
from .channel import Channel
from .compression import Compressor, load
from .errors import SettingError
from .operations import (
    AllGatherOperation,
    AllReduceOperation,
    AllToAllOperation,
    Average,
    BarrierOperation,
    BroadcastOperation,
    GroupedAllGatherOperation,
    GroupedReduceScatterOperation,
    ReduceOp,
    ReduceScatterOperation,
    check_reducible,
)
from .process_sets import ProcessSet, global_process_set
from .submissions import Handle
from .world import world


def allreduce_async(
    arrays: Sequence[Array],
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str | Compressor | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine contiguous arrays over the ranks, in place, as one unit.

    Args:
        arrays: one array, or a group that is only complete together; the same shapes and dtypes on every rank.
        name: identifies the call across ranks.
        op: Average, Sum, Adasum, Min, Max or Product. 16-bit floats are summed in float32.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
        compression: a spec such as ``"fp16"``, or a compressor whose state lives as long as the object.
        process_set: the ranks that take part.
    """
    channel = world().channel(process_set)
    op, topology = ReduceOp(op), channel.topology
    with channel.named(name, "allreduce") as its_name:
        for array in arrays:
            check_reducible(its_name, dtype_name(array), op, prescale_factor, postscale_factor)
        return channel.submit(
            AllReduceOperation(its_name, list(arrays), op, topology.size, topology.rank, prescale_factor, postscale_factor, as_compressor(compression))
        )


def allgather_async(array: Array, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Concatenate the ranks' arrays along the first dimension, which may differ. The handle gives ``(array, lengths by rank)``."""
    channel = world().channel(process_set)
    with channel.named(name, "allgather") as its_name:
        return channel.submit(AllGatherOperation(its_name, array, channel.topology.size))


def grouped_allgather_async(
    arrays: Sequence[Array], *, name: str | None = None, names: Sequence[str] = (), process_set: ProcessSet = global_process_set
) -> Handle:
    """Concatenate each of several arrays over the ranks, as one unit. The handle gives a list of ``(array, lengths by rank)``.

    ``names`` of the arrays serve error messages, and must be the same on every rank.
    """
    channel = world().channel(process_set)
    with channel.named(name, "grouped_allgather") as its_name:
        return channel.submit(GroupedAllGatherOperation(its_name, list(arrays), channel.topology.size, names))


def alltoall_async(
    array: Array, splits: Sequence[int] | Array | None = None, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Send consecutive rows of a contiguous array to each rank. The handle gives ``(rows received, how many by rank)``.

    Args:
        array: any dtype; at least one dimension, the first of which may differ from rank to rank.
        splits: rows for each rank, together as many as there are; without it, equally many for each.
        name: identifies the call across ranks.
    Raises:
        SettingError: the splits do not fit the array or the number of ranks.
    """
    channel = world().channel(process_set)
    with channel.named(name, "alltoall") as its_name:
        return channel.submit(AllToAllOperation(its_name, array, splits, channel.topology.size, channel.topology.rank))


def reducescatter_async(
    array: Array,
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine a contiguous array over the ranks, and leave to each its rows. The handle gives a new array.

    Args:
        array: the same shape and dtype on every rank, at least one dimension. Where its rows do not divide evenly, the first ranks get one more.
        name: identifies the call across ranks.
        op: Average, Sum, Min, Max or Product. 16-bit floats are summed in float32.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
    """
    channel = world().channel(process_set)
    op, topology = ReduceOp(op), channel.topology
    with channel.named(name, "reducescatter") as its_name:
        check_reducible(its_name, dtype_name(array), op, prescale_factor, postscale_factor)
        return channel.submit(ReduceScatterOperation(its_name, array, op, topology.size, topology.rank, prescale_factor, postscale_factor))


def grouped_reducescatter_async(
    arrays: Sequence[Array],
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine contiguous arrays over the ranks, and leave to each its rows of each, as one unit. The handle gives a list of new arrays."""
    channel = world().channel(process_set)
    op, topology = ReduceOp(op), channel.topology
    with channel.named(name, "grouped_reducescatter") as its_name:
        for array in arrays:
            check_reducible(its_name, dtype_name(array), op, prescale_factor, postscale_factor)
        return channel.submit(GroupedReduceScatterOperation(its_name, list(arrays), op, topology.size, topology.rank, prescale_factor, postscale_factor))


def broadcast_async(
    arrays: Sequence[Array], root_rank: int, *, name: str | None = None, names: Sequence[str] = (), process_set: ProcessSet = global_process_set
) -> Handle:
    """Copy contiguous arrays of ``root_rank`` to every rank, in place. ``names`` of the arrays serve error messages."""
    channel = world().channel(process_set)
    root = _number_of(root_rank, channel)
    layout = [(n, tuple(a.shape)) for n, a in zip(names, arrays, strict=True)] if names else ()
    with channel.named(name, "broadcast") as its_name:
        return channel.submit(BroadcastOperation(its_name, list(arrays), root, layout))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set has called it."""
    world().channel(process_set).submit(BarrierOperation("barrier")).wait()


def join() -> int:
    """Say that this rank has no more data, and wait until all ranks have said so. Returns the last one to say it; then all begin anew.

    Ranks that go on communicate among themselves: a mean is that of the ranks that take part, rows come from them and go to them alone.
    """
    channel = world().engine.channel
    last: int = channel.join().wait()
    if channel.topology.size > 1:  # those that went on have made more calls without a name
        for theirs in allgather_object(channel.counters, "join.counters"):
            for kind, number in theirs.items():
                channel.counters[kind] = max(number, channel.counters.get(kind, 0))
    return last


def allreduce(
    array: Array, *, name: str | None = None, op: ReduceOp = Average, compression: str | Compressor | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """A new array: the ranks' arrays combined."""
    result = np.array(array, order="C")
    allreduce_async([result], name=name, op=op, compression=compression, process_set=process_set).wait()
    return result


def allgather(array: Array, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """A new array: the ranks' arrays, one after the other."""
    return allgather_async(np.asarray(array, order="C"), name=name, process_set=process_set).wait()[0]


def grouped_allgather(arrays: Sequence[Array], *, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Array]:
    """New arrays: of each, the ranks' arrays one after the other. One unit: nothing is sent before every rank has all of them."""
    return [whole for whole, _ in grouped_allgather_async([np.asarray(a, order="C") for a in arrays], name=name, process_set=process_set).wait()]


def alltoall(
    array: Array, splits: Sequence[int] | Array | None = None, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Array, list[int]]:
    """Send ``splits[r]`` rows to each rank r. Returns a new array, the rows received in the order of ranks, and how many came from each."""
    received, lengths = alltoall_async(np.asarray(array, order="C"), splits, name=name, process_set=process_set).wait()
    return received, lengths


def reducescatter(
    array: Array,
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """A new array: this rank's rows of the ranks' arrays combined. See :func:`reducescatter_async`."""
    given = np.asarray(array, order="C")
    return reducescatter_async(given, name=name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set).wait()


def grouped_reducescatter(
    arrays: Sequence[Array],
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """New arrays: this rank's rows of each of the ranks' arrays combined. One unit."""
    given = [np.asarray(a, order="C") for a in arrays]
    handle = grouped_reducescatter_async(given, name=name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set)
    result: list[Array] = handle.wait()
    return result


def broadcast(array: Array, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """A new array: that of ``root_rank``."""
    result = np.array(array, order="C")
    broadcast_async([result], root_rank, name=name, process_set=process_set).wait()
    return result


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Any picklable object of ``root_rank``, on every rank of the set."""
    channel = world().channel(process_set)
    name = name or channel.auto_name("broadcast_object")
    is_root = channel.rank == root_rank
    raw = np.frombuffer(pickle.dumps(obj), np.uint8).copy() if is_root else np.empty(0, np.uint8)
    length = np.array([raw.size], np.int64)
    broadcast_async([length], root_rank, name=f"{name}.length", process_set=process_set).wait()
    if not is_root:
        raw = np.empty(int(length[0]), np.uint8)
    broadcast_async([raw], root_rank, name=f"{name}.bytes", process_set=process_set).wait()
    return obj if is_root else pickle.loads(raw.tobytes())


def allgather_object(obj: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The ranks' objects, in the order of ranks; none of ranks that have joined."""
    return list(objects_by_rank(obj, name, process_set).values())


def objects_by_rank(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> dict[int, Any]:
    """:func:`allgather_object`, with the rank of each: its number among all."""
    channel = world().channel(process_set)
    name = name or channel.auto_name("allgather_object")
    whole, lengths = allgather_async(np.frombuffer(pickle.dumps(obj), np.uint8).copy(), name=name, process_set=process_set).wait()
    ends = np.cumsum(lengths)
    parts = zip(channel.members.ranks, ends, lengths, strict=True)
    return {rank: pickle.loads(whole[end - length : end].tobytes()) for rank, end, length in parts if length}


def _number_of(root_rank: int, channel: Channel) -> int:
    """The number in the set of a rank that is given by its number among all."""
    ranks = channel.members.ranks
    if root_rank in ranks:
        return list(ranks).index(root_rank)
    if channel.members.set_id:
        raise SettingError(
            f"root_rank={root_rank} is not in {channel.members.set_name}; one of its ranks {list(ranks)} is expected; they are numbered as among all"
        )
    raise SettingError(f"root_rank={root_rank} does not exist; a rank from 0 to {channel.topology.size - 1} is expected")


def as_compressor(compression: str | Compressor | None) -> Compressor | None:
    """What a user may pass as compression, as a compressor; None for no compression at all."""
    if isinstance(compression, str):
        compression = load(compression)
    if compression is not None and not isinstance(compression, Compressor):
        raise SettingError(f"compression={compression!r} is a {type(compression).__name__}; a spec such as 'powersgd:rank=4' or a Compressor is expected")
    return None if compression is None or compression.spec == "none" else compression
