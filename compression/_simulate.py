"""Play any number of ranks in one process, without MPI: what the tests, ``hvdlite predict`` and the shadow mode stand on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import Array, ops
from ._contract import AllGather, AllReduce, AllToAll, Bucket, Compressor, Exchange, Finish, PieceBytes, Request, Sent, Start, Step

_REDUCE = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply, "band": np.bitwise_and}


@dataclass
class Simulated:
    """What each rank ended with."""

    means: list[Array]
    sent: list[Sent]
    sent_bytes: list[int] = field(default_factory=list)
    """Bytes each rank put on the wire."""
    requests: list[Request] = field(default_factory=list)
    """Rank 0's requests, in order."""


def simulate(compressors: Sequence[Compressor], buckets: Sequence[Bucket], piece_bytes: int = 0) -> Simulated:
    """Run one exchange of ``compressors[r]`` on ``buckets[r]`` for every rank r, in pieces of so many bytes where exchanges allow it.

    Raises:
        AssertionError: the compressor breaks its contract: ranks ask for different things.
    """
    exchanges = [c.exchange(b) for c, b in zip(compressors, buckets, strict=True)]
    ranks = len(exchanges)
    results: list[tuple[Array, Sent] | None] = [None] * ranks
    outcome = Simulated([], [], [0] * ranks)
    answers: list[Any] = [None] * ranks
    while True:
        requests = [_resume(exchange, answer, results, r) for r, (exchange, answer) in enumerate(zip(exchanges, answers, strict=True))]
        asked = [r for r in requests if r is not None]
        if not asked:
            break
        assert len(asked) == ranks, f"{ranks - len(asked)} of {ranks} ranks were done while the others asked for {type(asked[0]).__name__}"
        assert len({_shape(r) for r in asked}) == 1, f"ranks asked for different things: {[_shape(r) for r in asked]}"
        for rank, step in enumerate(asked):
            request = step.request if isinstance(step, Start) else step
            if not isinstance(request, (Finish, PieceBytes)):
                outcome.sent_bytes[rank] += request.sent_bytes(ranks)
                outcome.requests += [request] * (rank == 0)
        answers = answer(asked, piece_bytes)
    for result in results:
        assert result is not None
        outcome.means.append(result[0])
        outcome.sent.append(result[1])
    return outcome


def _resume(exchange: Exchange, answer: Any, results: list[tuple[Array, Sent] | None], rank: int) -> Step | None:
    if results[rank] is not None:
        return None
    try:
        return exchange.send(answer)
    except StopIteration as stop:
        results[rank] = stop.value
        return None


def _shape(request: Step) -> tuple[object, ...]:
    if isinstance(request, Start):
        return ("Start", *_shape(request.request))
    if isinstance(request, (Finish, PieceBytes)):
        return (type(request).__name__,)
    return (type(request).__name__, *((tuple(a.shape), str(a.dtype)) for a in _arrays(request)))


def _arrays(request: Request) -> tuple[Array, ...]:
    if isinstance(request, AllGather):
        return request.arrays
    return request.parts[0] if isinstance(request, AllToAll) else (request.array,)


def play(programs: Sequence[Generator[Any, Any, Any]]) -> list[Any]:
    """Run the generators of all ranks in lockstep, with arrays filled in place as every transport does; what each returned."""
    results: list[Any] = [None] * len(programs)
    answers: list[Any] = [None] * len(programs)
    while True:
        asked = []
        for rank, program in enumerate(programs):
            try:
                asked.append(program.send(answers[rank]))
            except StopIteration as stop:
                results[rank] = stop.value
        if not asked:
            return results
        assert len(asked) == len(programs), f"{len(programs) - len(asked)} of {len(programs)} ranks were done while the others asked for {asked[0]}"
        answers = answer(asked)
        for request, its_answer in zip(asked, answers, strict=True):
            if isinstance(request, AllReduce):
                request.array[...] = its_answer


def answer(requests: Sequence[Any], piece_bytes: int = 0) -> list[Any]:
    """What each rank receives when all ask at once. Sums run in the order of the ranks, in the arrays' own type."""
    first = requests[0]
    if isinstance(first, PieceBytes):
        return [piece_bytes] * len(requests)
    if isinstance(first, Start):
        return answer([r.request for r in requests])  # the token is the answer, which was there at once
    if isinstance(first, Finish):
        return [r.token for r in requests]
    if isinstance(first, AllReduce):
        total = ops(first.array).to_numpy(first.array).copy()
        for request in requests[1:]:
            _REDUCE[first.op](total, ops(request.array).to_numpy(request.array), out=total)
        if first.factor != 1.0:
            total *= total.dtype.type(first.factor)
        return [ops(r.array).from_numpy(total.copy()) for r in requests]
    if isinstance(first, AllGather):
        rows = [tuple(ops(a).concat([a]).reshape(tuple(a.shape)) for a in r.arrays) for r in requests]  # a rank's memory may change: as on a wire
        return [rows for _ in requests]
    if isinstance(first, AllToAll):
        return [[r.parts[rank] for r in requests] for rank in range(len(requests))]
    for request in requests:
        request.array[...] = requests[first.root].array
    return [request.array for request in requests]
