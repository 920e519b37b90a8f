"""Ranks of one machine exchange through memory: an MPI shared window, in which buckets lie and which every rank reads.

Each rank has an arena: counters, two staging buffers a lane, and the buckets. A request is a few actions with barriers between them; a
barrier is a counter of each rank in the window, looked at by the engine with its usual pauses. In an allreduce each rank combines its
share of all ranks' arrays, in the order of ranks, and writes it to all of them: every byte is read once and written once.

What does not fit (a payload larger than a staging buffer) goes through MPI, by the same decision on every rank.
"""

from __future__ import annotations

import math
import mmap
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..compression import AllGather, AllReduce, AllToAll, Broadcast
from ._base import Pending, Topology, Transport, WireRequest
from ._memory import LINE_BYTES, NodeMemory
from ._packing import packed
from ._shares import combine, shares
from .mpi import MpiTransport

STAGING_BYTES = 16 << 20
"""Of each staging buffer. Memory is taken only when it is touched."""
SET_STAGING_BYTES = 4 << 20
"""The same for a process set, of which there may be many."""
_SMALL_BYTES = 16 << 10
_SHARE_OF_FREE = 0.5
_MAX_ARENA_BYTES = 16 << 30


class SharedMemoryTransport:
    """Collectives of ranks that share one machine: all of them, or some that have parts of their own in the memory of all.

    ``arenas``: which of the memory's each rank has; ``places``: where in it the transport's part begins. ``mpi`` carries what does not fit.
    """

    def __init__(
        self,
        mpi: MpiTransport,
        memory: NodeMemory,
        topology: Topology,
        num_lanes: int,
        *,
        arenas: Sequence[int],
        places: Sequence[int],
        staging_bytes: int = STAGING_BYTES,
    ):
        self._mpi, self._memory = mpi, memory
        self.topology, self.library = topology, mpi.library
        assert topology.local_size == topology.size, "the ranks of a shared-memory transport share one machine"
        self.staging_bytes = staging_bytes
        self._num_lanes, self._which, self._window = num_lanes, list(arenas), memory.window
        self._arenas = [memory.arenas[a] for a in arenas]
        parts = [arena[place:] for arena, place in zip(self._arenas, places, strict=True)]
        lanes = num_lanes + 1  # the last is CONTROL
        self._counters, self._places = ([p[: lanes * LINE_BYTES].view(np.int64)[word :: LINE_BYTES // 8] for p in parts] for word in (0, 1))
        start = _counter_bytes(lanes)
        self._staging = [[[p[start + i * staging_bytes :][:staging_bytes] for p in parts] for i in (2 * lane, 2 * lane + 1)] for lane in range(lanes)]
        self._turn = [0] * lanes
        self._found: dict[tuple[int, int, Any], list[Array]] = {}  # everyone's array, by the place, length and dtype of this rank's

    def start(self, request: WireRequest, lane: int) -> Pending:
        """Begin a request on a lane."""
        match request:
            case AllReduce(array, op, resident, settled, factor):
                if resident and self.holds(array):
                    actions = self._reduce_in_place(array, op, settled, factor, lane)
                else:
                    reduce = self._reduce_small if array.nbytes <= _SMALL_BYTES else self._reduce_staged
                    actions = reduce(array.reshape(-1), op, factor, lane)
                return self.run(lane, actions, lambda: array)
            case AllGather(arrays, sizes) if max(sizes or (sum(a.nbytes for a in arrays),)) <= self.staging_bytes:
                return self._gather(arrays, sizes, lane)
            case AllToAll(parts, None) if sum(a.nbytes for a in parts[0]) * len(parts) <= self.staging_bytes:
                return self._exchange(parts, lane)
            case AllToAll(parts, sizes) if sizes is not None and sizes.sum(axis=1).max() <= self.staging_bytes:
                return self._exchange_uneven(parts, sizes, lane)
            case Broadcast(array, root) if array.nbytes <= self.staging_bytes:
                return self._broadcast(array, root, lane)
        return self._mpi.start(request, lane)

    num_carriers, num_nodes = 0, 1
    is_wide = True

    def piece_bytes(self, lane: int) -> int:
        """There is no wire to be kept busy."""
        return 0

    def prepare(self, lane: int, wide: bool, turn: int) -> None:
        """For what goes through MPI."""
        self._mpi.prepare(lane, wide, turn)

    def sent_bytes(self, request: WireRequest) -> int:
        """As in a flat exchange, though it goes through memory."""
        return request.sent_bytes(self.topology.size)

    def allocate(self, num_elements: int, dtype: str) -> Array:
        """A vector in this rank's arena; ordinary memory when the arena is full."""
        found = self._memory.allocate(num_elements, dtype)
        return self._mpi.allocate(num_elements, dtype) if found is None else found

    # --- requests as actions between barriers ---

    def run(self, lane: int, actions: Iterator[Pending | None], answer: Callable[[], Any]) -> _Steps:
        """Take the actions one after the other; what they yield is waited for, None is a barrier."""
        return _Steps(self._window, self._counters, self._counters[self.topology.rank], lane, actions, answer)

    def everyone(self, array: Array, settled: bool, lane: int) -> Generator[None, None, list[Array]]:
        """The array in every rank's arena. At first each rank says where its own lies, since arenas may differ; later all know it."""
        known = (self._memory.offset(array), array.nbytes, array.dtype)
        if known not in self._found or not settled:
            self._places[self.topology.rank][lane] = known[0]
            yield
            places = [int(theirs[lane]) for theirs in self._places]
            self._found[known] = [arena[place : place + array.nbytes].view(array.dtype) for arena, place in zip(self._arenas, places, strict=True)]
        return self._found[known]

    def _reduce_in_place(self, array: Array, op: str, settled: bool, factor: float, lane: int) -> Iterator[None]:
        everyone = yield from self.everyone(array, settled, lane)
        self._combine(everyone, op, factor, everyone)
        yield

    def _reduce_small(self, flat: Array, op: str, factor: float, lane: int) -> Iterator[None]:
        """Everybody combines everything: one barrier, not two."""
        staging = [s[: flat.nbytes].view(flat.dtype) for s in self.next_staging(lane)]
        staging[self.topology.rank][:] = flat
        yield
        combine(staging, op, factor, [flat])

    def _reduce_staged(self, flat: Array, op: str, factor: float, lane: int) -> Iterator[None]:
        step = self.staging_bytes // flat.itemsize
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            staging = [s[: piece.nbytes].view(piece.dtype) for s in self.next_staging(lane)]
            staging[self.topology.rank][:] = piece
            yield
            self._combine(staging, op, factor, [staging[self.topology.rank]])
            yield
            for rank, share in enumerate(shares(piece.size, self.topology.size)):
                piece[share] = staging[rank][share]

    def _gather(self, arrays: Sequence[Array], sizes: Sequence[int] | None, lane: int) -> _Steps:
        staging = self.next_staging(lane)
        raw, read = packed(arrays)

        def actions() -> Iterator[None]:
            staging[self.topology.rank][: raw.size] = raw
            yield

        rows = [s[:n] for s, n in zip(staging, sizes or [raw.size] * len(staging), strict=True)]
        return self.run(lane, actions(), lambda: [(row,) if sizes is not None else read(row) for row in rows])

    def _exchange(self, parts: Sequence[Sequence[Array]], lane: int) -> _Steps:
        staging, rank = self.next_staging(lane), self.topology.rank
        written = [packed(part) for part in parts]
        size, read = written[0][0].size, written[0][1]

        def actions() -> Iterator[None]:
            for number, (raw, _) in enumerate(written):
                staging[rank][number * size : (number + 1) * size] = raw
            yield

        return self.run(lane, actions(), lambda: [read(s[rank * size : (rank + 1) * size]) for s in staging])

    def _exchange_uneven(self, parts: Sequence[Sequence[Array]], sizes: Array, lane: int) -> _Steps:
        staging, rank = self.next_staging(lane), self.topology.rank

        def actions() -> Iterator[None]:
            start = 0
            for (raw,) in parts:
                staging[rank][start : start + raw.size] = raw
                start += raw.size
            yield

        starts = sizes[:, :rank].sum(axis=1)  # of what is meant for this rank, in each one's buffer
        return self.run(lane, actions(), lambda: [(s[a : a + n],) for s, a, n in zip(staging, starts, sizes[:, rank], strict=True)])

    def _broadcast(self, array: Array, root: int, lane: int) -> _Steps:
        staging = self.next_staging(lane)[root]
        raw = array.reshape(-1).view(np.uint8)

        def actions() -> Iterator[None]:
            if self.topology.rank == root:
                staging[: raw.size] = raw
            yield
            if self.topology.rank != root:
                raw[:] = staging[: raw.size]

        return self.run(lane, actions(), lambda: array)

    def _combine(self, inputs: Sequence[Array], op: str, factor: float, outputs: Sequence[Array]) -> None:
        """Combine this rank's share of all inputs, and write it to that share of the outputs."""
        share = shares(inputs[0].size, len(inputs))[self.topology.rank]
        combine([i[share] for i in inputs], op, factor, [o[share] for o in outputs])

    # --- the arena ---

    def next_staging(self, lane: int) -> list[Array]:
        """The two buffers of a lane take turns: when one comes round again, everybody has passed a barrier after reading it."""
        self._turn[lane] ^= 1
        return self._staging[lane][self._turn[lane]]

    def holds(self, array: Array) -> bool:
        """Whether the array lies in this rank's arena."""
        return self._memory.holds(array)

    # --- process sets: their memory is a part of this one ---

    def reserve(self) -> int:
        """Counters, all zero, and staging in this rank's arena."""
        place = self._memory.reserve(_part_bytes(self._num_lanes, SET_STAGING_BYTES))
        if place >= 0:
            self._arenas[self.topology.rank][place:][: _counter_bytes(self._num_lanes + 1)] = 0
            self._window.Sync()
        return place

    def release(self, place: int) -> None:
        """Give the part back to the arena."""
        if place >= 0:
            self._memory.release(place, _part_bytes(self._num_lanes, SET_STAGING_BYTES))

    def subset(self, ranks: Sequence[int], places: Sequence[int]) -> Transport:
        """Through memory if every rank has found room."""
        mpi = self._mpi.subset(ranks)
        return self.part(mpi, mpi.topology, ranks, places) if min(places) >= 0 else mpi

    def part(self, mpi: MpiTransport, topology: Topology, ranks: Sequence[int], places: Sequence[int]) -> SharedMemoryTransport:
        """A transport of some ranks of this one, which have reserved these places."""
        which = [self._which[r] for r in ranks]
        return SharedMemoryTransport(mpi, self._memory, topology, self._num_lanes, arenas=which, places=places, staging_bytes=SET_STAGING_BYTES)

    def post(self, rank: int, note: bytes) -> None:
        """Through MPI."""
        self._mpi.post(rank, note)

    def notes(self) -> list[tuple[int, bytes]]:
        """Through MPI."""
        return self._mpi.notes()

    def close(self) -> None:
        """Free the communicators. The window stays until the process ends: gradients lie in it."""
        self._mpi.close()

    def abandon(self) -> None:
        """Never wait for other ranks again."""
        self._mpi.abandon()


class _Steps:
    """A request under way: its next action runs when every rank has reached the barrier before it, or when what it waits for is done."""

    def __init__(self, window: Any, counters: Sequence[Array], mine: Array, lane: int, actions: Iterator[Pending | None], answer: Callable[[], Any]):
        self._window, self._counters, self._mine = window, counters, mine
        self._lane, self._actions, self.answer = lane, actions, answer
        self._waiting = True
        self._awaited: Pending | None = None
        self.moved = False
        self._advance()

    def done(self) -> bool:
        """Run what can run."""
        while self._waiting:
            if self._awaited is not None:
                if not self._awaited.done():
                    self.moved = self._awaited.moved
                    return False
            else:
                self.moved = False
                target = self._mine[self._lane]
                if any(c[self._lane] < target for c in self._counters):
                    return False
                self._window.Sync()  # what the others wrote before their barrier is visible from here on
            self._advance()
        return True

    def _advance(self) -> None:
        awaited = next(self._actions, self)
        if awaited is self:
            self._waiting = False
            return
        self._awaited = awaited
        if awaited is None:
            self._window.Sync()
            self._mine[self._lane] += 1  # reached the next barrier


def arena_bytes(mpi: MpiTransport) -> int:
    """What each rank may take: half of the shared memory that is free, in equal parts; the same number on every rank."""
    free = shutil.disk_usage("/dev/shm").free
    return mpi.smallest(min(_MAX_ARENA_BYTES, math.floor(free * _SHARE_OF_FREE / mpi.topology.size)) // 4096 * 4096)


def smallest_arena_bytes(num_lanes: int) -> int:
    """What each rank needs: staging, and room for buckets."""
    return 2 * (num_lanes + 1) * STAGING_BYTES + (64 << 20)


def connect(mpi: MpiTransport, num_lanes: int, num_bytes: int) -> SharedMemoryTransport:
    """A transport through new memory, of ``num_bytes`` a rank, of all ranks. Every rank calls it."""
    topology = mpi.topology
    memory = NodeMemory(*mpi.shared_window(num_bytes), topology.rank)
    place = memory.reserve(_part_bytes(num_lanes, STAGING_BYTES))
    return SharedMemoryTransport(mpi, memory, topology, num_lanes, arenas=range(topology.size), places=[place] * topology.size)


def _counter_bytes(lanes: int) -> int:
    """Whole pages."""
    return -(-lanes * LINE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


def _part_bytes(num_lanes: int, staging_bytes: int) -> int:
    """Counters, and two staging buffers a lane."""
    return _counter_bytes(num_lanes + 1) + 2 * (num_lanes + 1) * staging_bytes
