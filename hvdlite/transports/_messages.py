"""Large requests as messages between pairs of ranks, in pieces that are all under way at once.

MPI's own non-blocking collectives go through steps, and take the next one only when somebody looks: over a link each look that comes
late leaves the wire empty. Messages that were all posted at the beginning keep it full, and what has arrived is combined while the rest is
on its way. Every rank sends what a bandwidth-optimal algorithm sends, ``2 (P-1)/P`` of an allreduce's payload (Patarasuk & Yuan 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays import Array, dtype_name, ops
from ._shares import combine, shares

PIECE_BYTES = 1 << 20
_MAX_PIECES = 64
_LINE = 64


class Scratch:
    """Where a lane receives. Two buffers take turns, so that an answer stays valid until the request after the next one on its lane."""

    def __init__(self) -> None:
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._used = 0

    def begin(self, num_bytes: int) -> None:
        """Take the other buffer, and make sure that it is large enough."""
        self._buffers.reverse()
        if self._buffers[0].size < num_bytes:
            self._buffers[0] = np.empty(num_bytes, np.uint8)
        self._used = 0

    def take(self, like: Array) -> Array:
        """Room for an array."""
        start, self._used = self._used, self._used + line_up(like.nbytes)
        raw = self._buffers[0][start : start + like.nbytes]
        return ops(like).from_bytes(raw, dtype_name(like), like.shape)


def line_up(num_bytes: int) -> int:
    """Arrays in a scratch buffer begin on cache lines."""
    return -(-num_bytes // _LINE) * _LINE


class Messages:
    """A request under way: stages, each a few messages and what to do when they are through, which may begin further stages."""

    def __init__(self, MPI: Any, comm: Any, answer: Callable[[], Any]):
        self._MPI, self._comm, self.answer = MPI, comm, answer
        self._stages: list[tuple[list[Any], Callable[[], None] | None]] = []

    def done(self) -> bool:
        """Let messages progress, and act on those that are through."""
        stages, self._stages = self._stages, []
        for requests, then in stages:
            if not self._MPI.Request.Testall(requests):
                self._stages.append((requests, then))
            elif then is not None:
                then()
        return not self._stages

    def stage(self, requests: list[Any], then: Callable[[], None] | None = None) -> None:
        """Wait for the messages, then act."""
        self._stages.append((requests, then))

    def send(self, array: Array, rank: int, tag: int = 0) -> Any:
        """Begin to send a contiguous array."""
        return self._comm.Isend([ops(array).as_bytes(array), self._MPI.BYTE], rank, tag)

    def receive(self, array: Array, rank: int, tag: int = 0) -> Any:
        """Begin to receive into a contiguous array."""
        return self._comm.Irecv([ops(array).as_bytes(array), self._MPI.BYTE], rank, tag)

    @property
    def others(self) -> list[int]:
        """The other ranks, each rank beginning with its right-hand neighbour, so that not everybody sends to the same one."""
        return [(self._comm.rank + distance) % self._comm.size for distance in range(1, self._comm.size)]


def reduce(messages: Messages, scratch: Scratch, flat: Array, op: str, factor: float) -> None:
    """Combine a vector over the ranks, in place."""
    if len(messages.others) == 1:
        _reduce_with_one(messages, scratch, flat, op, factor)
    else:
        _reduce_in_shares(messages, scratch, flat, op, factor)


def _reduce_with_one(messages: Messages, scratch: Scratch, flat: Array, op: str, factor: float) -> None:
    """Two ranks swap the whole: as many bytes as in shares, and no second step that waits for a first."""
    (other,) = messages.others
    scratch.begin(flat.nbytes)
    theirs = scratch.take(flat)
    inputs = [flat, theirs] if other else [theirs, flat]
    pieces = _pieces(flat)
    arriving = [messages.receive(theirs[piece], other) for piece in pieces]
    for piece, received in zip(pieces, arriving, strict=True):
        ours = flat[piece]
        messages.stage([received, messages.send(ours, other)], partial(combine, [i[piece] for i in inputs], op, factor, [ours]))


def _reduce_in_shares(messages: Messages, scratch: Scratch, flat: Array, op: str, factor: float) -> None:
    """Every rank collects its share from all, combines it, and sends the result to all."""
    rank, others = messages._comm.rank, messages.others
    by_rank = [flat[share] for share in shares(flat.size, len(others) + 1)]
    mine = by_rank[rank]
    scratch.begin(len(others) * line_up(mine.nbytes))
    arrived = {other: scratch.take(mine) for other in others}
    inputs = [arrived.get(r, mine) for r in range(len(by_rank))]

    def combine_and_send(number: int, piece: slice) -> None:
        result = mine[piece]
        combine([vector[piece] for vector in inputs], op, factor, [result])
        messages.stage([messages.send(result, other, 2 * number + 1) for other in others])

    def receive_result(part: Array, other: int, number: int) -> None:
        messages.stage([messages.receive(part, other, 2 * number + 1)])

    pieces = list(enumerate(_pieces(by_rank[0])))  # of the longest share
    for number, piece in pieces:
        if mine[piece].size:
            received = [messages.receive(arrived[other][piece], other, 2 * number) for other in others]
            messages.stage(received, partial(combine_and_send, number, piece))
    for number, piece in pieces:
        for other in others:
            part = by_rank[other][piece]
            if part.size:  # its result lands where it is sent from: not before it has left
                messages.stage([messages.send(part, other, 2 * number)], partial(receive_result, part, other, number))


def exchange(messages: Messages, scratch: Scratch, parts: Sequence[tuple[Array, ...]], sizes: Sequence[int] | None = None) -> list[tuple[Array, ...]]:
    """Send ``parts[r]`` to rank r; where they will be once all have arrived, by sender. ``sizes``: bytes by sender, where these differ."""
    rank, others = messages._comm.rank, messages.others
    scratch.begin(sum(line_up(a.nbytes) for part in parts for a in part) if sizes is None else sum(map(line_up, sizes)))
    arriving = {}
    for other in others:
        like = parts[other] if sizes is None else (np.empty(sizes[other], np.uint8),)
        arriving[other] = tuple(scratch.take(array) for array in like)
        messages.stage([messages.receive(flat[piece], other) for flat in map(_flat, arriving[other]) for piece in _pieces(flat)])
    for other in others:
        messages.stage([messages.send(flat[piece], other) for flat in map(_flat, parts[other]) for piece in _pieces(flat)])
    return [parts[rank] if r == rank else arriving[r] for r in range(len(parts))]


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)


def _pieces(flat: Array) -> list[slice]:
    """Cuts of a vector, all ranks the same."""
    step = max(PIECE_BYTES, -(-flat.nbytes // _MAX_PIECES)) // flat.itemsize
    return [slice(start, min(start + step, flat.size)) for start in range(0, flat.size, step)]
