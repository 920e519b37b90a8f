"""Exchanges played on one rank of many, as the engine plays them, and timed between their requests."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from ..arrays import nbytes
from ..compression import AllGather, AllReduce, AllToAll, Finish, PieceBytes, Start

Kind: TypeAlias = Literal["allreduce", "allgather", "alltoall"]


class Work(msgspec.Struct, frozen=True, tag="work", array_like=True):
    """Encoding or decoding: CPU seconds of the communication thread."""

    seconds: float


class Request(msgspec.Struct, frozen=True, tag="request", array_like=True):
    """A request that is waited for. ``nbytes``: of the array to be reduced, of the own payload to be gathered, of all parts to be sent around."""

    kind: Kind
    nbytes: int


class Begin(msgspec.Struct, frozen=True, tag="begin", array_like=True):
    """A request that is under way while the exchange goes on."""

    token: int
    kind: Kind
    nbytes: int


class End(msgspec.Struct, frozen=True, tag="end", array_like=True):
    """Wait for what was begun."""

    token: int


Step: TypeAlias = Work | Request | Begin | End
Program: TypeAlias = tuple[Step, ...]
"""What an exchange does, one step after the other."""


@dataclass(frozen=True)
class _Token:
    number: int
    answer: Any


class Played:
    """Plays a program as one of ``num_ranks`` ranks that all send the same, and notes what it does."""

    def __init__(self, num_ranks: int, piece_bytes: int):
        self.num_ranks, self._piece_bytes = num_ranks, piece_bytes
        self.asks_for_pieces = False
        self._steps: list[Step] = []
        self._num_begun = 0

    def __call__(self, program: Generator[Any, Any, Any]) -> Program:
        """The steps, with the time that this call took between the requests."""
        self._steps, self._num_begun = [], 0
        answer: Any = None
        while True:
            start = time.process_time()
            try:
                request = program.send(answer)
            except StopIteration:
                self._work(time.process_time() - start)
                return tuple(self._steps)
            self._work(time.process_time() - start)
            answer = self._answer(request)

    def _work(self, seconds: float) -> None:
        if self._steps and isinstance(self._steps[-1], Work):
            seconds += self._steps.pop().seconds  # type: ignore[union-attr]
        self._steps.append(Work(seconds))

    def _answer(self, request: Any) -> Any:
        match request:
            case PieceBytes():
                self.asks_for_pieces = True
                return self._piece_bytes
            case Start(inner):
                kind, size, answer = self._play(inner)
                self._num_begun += 1
                self._steps.append(Begin(self._num_begun, kind, size))
                return _Token(self._num_begun, answer)
            case Finish(_Token(number, answer)):
                self._steps.append(End(number))
                return answer
        kind, size, answer = self._play(request)
        self._steps.append(Request(kind, size))
        return answer

    def _play(self, request: Any) -> tuple[Kind, int, Any]:
        match request:
            case AllReduce(array, op, factor=factor):
                scale = factor * (self.num_ranks if op == "sum" else 1)
                if scale != 1.0 and array.dtype.kind == "f":
                    array *= scale
                return "allreduce", nbytes(array), array
            case AllGather(arrays):
                return "allgather", sum(map(nbytes, arrays)), [arrays] * self.num_ranks
            case AllToAll(parts):
                return "alltoall", sum(nbytes(a) for part in parts for a in part), [parts[0]] * self.num_ranks
        raise AssertionError(f"no exchange of gradients asks for {type(request).__name__}")


def merged(programs: list[Program]) -> Program:
    """One program out of several runs of it: the median time of each step."""
    first, found = programs[0], list(programs[0])
    for place, step in enumerate(first):
        if isinstance(step, Work):
            times = sorted(p[place].seconds for p in programs)  # type: ignore[union-attr]
            found[place] = Work(times[len(times) // 2])
    return tuple(found)
