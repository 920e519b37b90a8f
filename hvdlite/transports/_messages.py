"""Large requests as messages between pairs of ranks, in pieces that are all under way at once.

MPI's own non-blocking collectives go through steps, and take the next one only when somebody looks: over a link each look that comes
late leaves the wire empty. Messages that were all posted at the beginning keep it full, and what has arrived is combined while the rest is
on its way. Every rank sends what a bandwidth-optimal algorithm sends, ``2 (P-1)/P`` of an allreduce's payload (Patarasuk & Yuan 2009).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arrays import Array, dtype_name, ops
from ._shares import combine, shares

PIECE_BYTES = 256 << 10
"""Of one message over a link: 2 ms at 1 Gb/s. What a negotiation sends waits behind ``PIECES_AHEAD`` of them."""
WIDE_PIECE_BYTES = 4 << 20
"""Of one message where that is a matter of milliseconds, too: large messages cost libraries less time a byte."""
MAX_PIECES = 256
"""There are more bytes in each piece where there would be more pieces."""
PIECES_AHEAD = 4
"""Messages to one rank that are under way at once."""
WIDE_BYTES_PER_SECOND = 200e6
"""From here on a connection is wide."""
_LINE = 64
_HELD = [object()]
_UNUSED = sys.getrefcount(_HELD[0])
"""References to what only a list holds, while ``getrefcount`` looks at it."""


class Scratch:
    """Where a lane receives: memory that is used again as soon as nobody holds an array in it any more, which Python counts."""

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._current = np.empty(0, np.uint8)
        self._used = 0

    def begin(self, num_bytes: int) -> None:
        """Take a buffer for the next arrays: the smallest that is free and large enough, or a new one in place of one that is free."""
        self._current = np.empty(0, np.uint8)
        free = sorted((n for n in range(len(self._buffers)) if sys.getrefcount(self._buffers[n]) == _UNUSED), key=lambda n: self._buffers[n].size)
        fitting = next((n for n in free if self._buffers[n].size >= num_bytes), None)
        if fitting is None:
            if free:
                del self._buffers[free[-1]]
            self._buffers.append(np.empty(num_bytes, np.uint8))
            fitting = -1
        self._current, self._used = self._buffers[fitting], 0

    def take(self, like: Array) -> Array:
        """Room for an array."""
        start, self._used = self._used, self._used + line_up(like.nbytes)
        raw = self._current[start : start + like.nbytes]
        return ops(like).from_bytes(raw, dtype_name(like), like.shape)


def line_up(num_bytes: int) -> int:
    """Arrays in a scratch buffer begin on cache lines."""
    return -(-num_bytes // _LINE) * _LINE


class Messages:
    """A request under way: queues of stages, each a few messages and what to do when they are through, which may add further stages.

    Messages between two ranks arrive in the order in which they were sent, so only the first stage of a queue is looked at.
    """

    def __init__(self, MPI: Any, comm: Any, wide: bool, queue: SendQueue, turn: tuple[int, int], answer: Callable[[], Any], through: Callable[[float], None]):
        self._MPI, self._comm, self.answer, self._through = MPI, comm, answer, through
        self._sending, self.turn = queue, turn
        self._unbegun: list[Callable[[], None]] = []
        self.num_unsent = 0
        """Pieces that are still to be sent, and hold back those of later turns."""
        queue.members.append(self)
        self._piece_bytes = WIDE_PIECE_BYTES if wide else PIECE_BYTES
        self._received_bytes, self._begun = 0, time.perf_counter()
        self._queues: dict[Hashable, deque[_Stage]] = {}
        self.rank, self.size = comm.rank, comm.size
        self.moved = False

    def done(self) -> bool:
        """Let messages progress, and act on those that are through."""
        self.moved = False
        self.begin()
        for name, queue in list(self._queues.items()):
            while queue and self._MPI.Request.Testall(queue[0].requests):
                self.moved = True
                then = queue.popleft().then
                if then is not None:
                    then()
            if not queue:
                del self._queues[name]
        if not self._queues and self.moved and self._received_bytes >= WIDE_PIECE_BYTES:  # less fits into the buffers on the way
            self._through(self._received_bytes / (time.perf_counter() - self._begun))
        if not self._queues and not self._unbegun:
            self._sending.leave(self)
            return True
        return False

    def begin(self) -> None:
        """Send the first pieces, if it is their turn."""
        if self._unbegun and self._sending.may_begin(self):
            begin, self._unbegun = self._unbegun, []
            for action in begin:
                action()

    def stage(self, queue: Hashable, requests: list[Any], then: Callable[[], None] | None = None) -> None:
        """Wait for the messages, after everything before them in the queue, then act."""
        self._queues.setdefault(queue, deque()).append(_Stage(requests, then))

    def send(self, array: Array, rank: int, tag: int = 0) -> Any:
        """Begin to send a contiguous array."""
        return self._comm.Isend([ops(array).as_bytes(array), self._MPI.BYTE], rank, tag)

    def receive(self, array: Array, rank: int, tag: int = 0) -> Any:
        """Begin to receive into a contiguous array."""
        self._received_bytes += array.nbytes
        return self._comm.Irecv([ops(array).as_bytes(array), self._MPI.BYTE], rank, tag)

    def swap(
        self, other: int, outgoing: Sequence[Array], incoming: Sequence[Array], arrived: Callable[[int], None], sent: Callable[[int], None], tag: int
    ) -> None:
        """Send and receive pieces, a few at a time.

        What lies in the queues of the network delays every message behind it, those of the negotiation above all. So the next piece is
        sent when one of the other rank's has arrived: then one of ours most likely has, too.
        """
        unsent = deque(enumerate(outgoing))
        has_begun, allowed = False, PIECES_AHEAD if incoming else len(unsent)

        def allow(more: int) -> None:
            """Send so many more, but not before it is our turn: pieces would overtake those of an earlier request, and land in its arrays."""
            nonlocal allowed
            allowed += more
            while has_begun and allowed and unsent:
                allowed -= 1
                self.num_unsent -= 1
                number, piece = unsent.popleft()
                self.stage(("sent", other), [self.send(piece, other, tag)], partial(sent, number))

        def receive(number: int) -> None:
            allow(1 if number + 1 < len(incoming) else len(unsent))
            arrived(number)

        def begin() -> None:
            nonlocal has_begun
            has_begun = True
            allow(0)

        for number, piece in enumerate(incoming):
            self.stage(("arrived", other), [self.receive(piece, other, tag)], partial(receive, number))
        self.num_unsent += len(unsent)
        self._unbegun.append(begin)

    def pieces_of(self, flat: Array) -> list[slice]:
        """Cuts of a vector, the same on all ranks."""
        step = max(self._piece_bytes, -(-flat.nbytes // MAX_PIECES)) // flat.itemsize
        return [slice(start, min(start + step, flat.size)) for start in range(0, flat.size, step)]

    @property
    def others(self) -> list[int]:
        """The other ranks, each rank beginning with its right-hand neighbour, so that not everybody sends to the same one."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]


class SendQueue:
    """Whose turn it is on a transport's connections.

    Requests that share them fairly would all end at the end; one after the other, the first is decoded and its results travel while the
    next one is sent. Turns are numbered in the order that all ranks agreed on. So the request with the lowest number waits for no other
    one on any rank, and there is always one that moves. Requests of one operation have the same number, and go in the order in which they began.
    """

    def __init__(self) -> None:
        self.members: list[Messages] = []

    def may_begin(self, messages: Messages) -> bool:
        """Whether nothing of an earlier turn is still to be sent."""
        return not any(m.num_unsent and m.turn < messages.turn for m in self.members)

    def leave(self, messages: Messages) -> None:
        """All its messages are through."""
        if messages in self.members:
            self.members.remove(messages)


@dataclass
class _Stage:
    requests: list[Any]
    then: Callable[[], None] | None


def reduce(messages: Messages, scratch: Scratch, flat: Array, op: str, factor: float) -> None:
    """Combine a vector over the ranks, in place."""
    if messages.size == 2:
        _reduce_with_one(messages, scratch, flat, op, factor)
    else:
        _reduce_in_shares(messages, scratch, flat, op, factor)


def _reduce_with_one(messages: Messages, scratch: Scratch, flat: Array, op: str, factor: float) -> None:
    """Two ranks swap the whole: as many bytes as in shares, and no second step that waits for a first."""
    (other,) = messages.others
    scratch.begin(flat.nbytes)
    theirs = scratch.take(flat)
    pieces = messages.pieces_of(flat)
    inputs = [flat, theirs] if other else [theirs, flat]
    through = [0] * len(pieces)

    def half_done(number: int) -> None:
        through[number] += 1
        if through[number] == 2:  # both ways: only now may the piece change
            piece = pieces[number]
            combine([i[piece] for i in inputs], op, factor, [flat[piece]])

    messages.swap(other, [flat[p] for p in pieces], [theirs[p] for p in pieces], half_done, half_done, 0)


def _reduce_in_shares(messages: Messages, scratch: Scratch, flat: Array, op: str, factor: float) -> None:
    """Every rank collects its share from all, combines it, and sends the result to all."""
    by_rank = [flat[share] for share in shares(flat.size, messages.size)]
    mine = by_rank[messages.rank]
    pieces = messages.pieces_of(by_rank[0])  # the longest share
    scratch.begin((messages.size - 1) * line_up(mine.nbytes))
    theirs = {other: scratch.take(mine) for other in messages.others}
    inputs = [theirs.get(r, mine) for r in range(messages.size)]
    missing = [messages.size - 1] * len(pieces)

    def arrived(number: int) -> None:
        missing[number] -= 1
        if not missing[number]:
            result = mine[pieces[number]]
            combine([vector[pieces[number]] for vector in inputs], op, factor, [result])
            messages.stage("results", [messages.send(result, other, 1) for other in messages.others])

    def sent(other: int, number: int) -> None:  # its result lands where it was sent from: not before it has left
        messages.stage(("result", other), [messages.receive(by_rank[other][pieces[number]], other, 1)])

    for other in messages.others:
        outgoing, incoming = ([vector[p] for p in pieces if vector[p].size] for vector in (by_rank[other], theirs[other]))
        messages.swap(other, outgoing, incoming, arrived, partial(sent, other), 0)


def exchange(messages: Messages, scratch: Scratch, parts: Sequence[tuple[Array, ...]], sizes: Sequence[int] | None = None) -> list[tuple[Array, ...]]:
    """Send ``parts[r]`` to rank r; where they will be once all have arrived, by sender. ``sizes``: bytes by sender, where these differ."""
    scratch.begin(sum(line_up(a.nbytes) for part in parts for a in part) if sizes is None else sum(map(line_up, sizes)))
    result = list(parts)
    for other in messages.others:
        like = parts[other] if sizes is None else (np.empty(sizes[other], np.uint8),)
        result[other] = tuple(scratch.take(array) for array in like)
        outgoing, incoming = ([flat[p] for flat in map(_flat, part) for p in messages.pieces_of(flat)] for part in (parts[other], result[other]))
        messages.swap(other, outgoing, incoming, _nothing, _nothing, 0)
    return result


def _nothing(number: int) -> None:
    """Nothing is to be done with a piece alone."""


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)
