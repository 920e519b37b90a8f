"""What requests cost, from measured samples: a curve a kind of collective and transport, and how it changes with the number of ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ._played import Kind
from .ranks import Sample

_WIDE_ENOUGH = 1.15
"""A transport whose large messages take so many times its CPU is limited by its line; below, by copying."""


_SD_PER_MAD = 1.4826  # of a normal distribution; one stalled request must not make everything uncertain


@dataclass(frozen=True)
class Curve:
    """Seconds by bytes, straight between measured points and beyond the last two. It never falls."""

    points: tuple[tuple[float, float], ...]

    def at(self, num_bytes: float) -> float:
        """Seconds for so many bytes; those of the smallest measured size below it."""
        points = self.points
        if num_bytes <= points[0][0] or len(points) == 1:
            return points[0][1]
        right = next((i for i, (x, _) in enumerate(points) if x >= num_bytes), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + (y1 - y0) * (num_bytes - x0) / (x1 - x0)

    @property
    def slope(self) -> float:
        """Seconds a byte, of large requests."""
        if len(self.points) == 1:
            return self.points[0][1] / self.points[0][0]
        (x0, y0), (x1, y1) = self.points[-2:]
        return (y1 - y0) / (x1 - x0)


def curve(samples: Iterable[tuple[float, float]]) -> Curve:
    """Through the medians of ``(bytes, seconds)``; a larger request is never cheaper."""
    by_size: defaultdict[float, list[float]] = defaultdict(list)
    for num_bytes, seconds in samples:
        by_size[num_bytes].append(seconds)
    points, highest = [], 0.0
    for num_bytes in sorted(by_size):
        highest = max(highest, median(by_size[num_bytes]))
        points.append((num_bytes, highest))
    return Curve(tuple(points))


def sent_bytes(kind: Kind, num_bytes: float, num_ranks: int) -> float:
    """What one rank sends for a request: see :meth:`hvdlite.compression.AllReduce.sent_bytes` and its siblings."""
    others = num_ranks - 1
    return {"allreduce": 2 * others / num_ranks, "allgather": others, "alltoall": others / num_ranks}[kind] * num_bytes


def hops(kind: Kind, num_bytes: float, num_ranks: int, is_small: bool) -> int:
    """One-way delays between the start of a request and its answer: small ones double their reach in each step, large ones go straight to every rank."""
    if is_small:
        return max(1, math.ceil(math.log2(num_ranks)))
    return 2 if kind == "allreduce" and num_ranks > 2 else 1


@dataclass(frozen=True)
class TransportCosts:
    """A transport, as it was measured between ``num_ranks`` ranks. Curves go by the bytes that a rank sends; in memory by the bytes of the request."""

    num_ranks: int
    is_memory: bool
    seconds: dict[Kind, Curve]
    cpu_seconds: dict[Kind, Curve]
    rounds: tuple[float, ...]
    """Of agreement, while nobody computes."""
    busy_rounds: tuple[float, ...]
    spread: float
    """Standard deviation of a request's time over its median, of large ones."""

    @classmethod
    def of(cls, samples: Sequence[Sample], rounds: Sequence[float], busy_rounds: Sequence[float], num_ranks: int, *, is_memory: bool) -> TransportCosts:
        """From what was measured."""

        def size(s: Sample) -> float:
            return s.nbytes if is_memory else sent_bytes(s.kind, s.nbytes, num_ranks)

        kinds = sorted({s.kind for s in samples})
        wall = {kind: curve((size(s), s.seconds) for s in samples if s.kind == kind) for kind in kinds}
        cpu = {kind: curve((size(s), min(s.cpu_seconds, s.seconds)) for s in samples if s.kind == kind) for kind in kinds}
        large = max(s.nbytes for s in samples)
        ratios = [s.seconds / wall[s.kind].at(size(s)) for s in samples if s.nbytes == large]
        spread = _SD_PER_MAD * median(abs(r - 1) for r in ratios)
        return cls(num_ranks, is_memory, wall, cpu, tuple(rounds), tuple(busy_rounds), spread)

    def bytes_per_second(self, cores: float) -> float:
        """Of the line, as far as it showed: infinite where copying took all the time. ``cores``: what each measuring rank had."""
        if self.is_memory:
            return math.inf
        wall, cpu = self.seconds["allreduce"].slope, self.cpu_seconds["allreduce"].slope / min(1.0, cores)
        return 1 / wall if wall > _WIDE_ENOUGH * cpu else math.inf

    def request(self, kind: Kind, num_bytes: float, num_ranks: int, cores: float) -> tuple[float, float, float]:
        """``(CPU seconds, bytes on the wire, seconds of waiting beside both)`` of a request among so many ranks."""
        if self.is_memory:
            more = max(1.0, num_ranks / self.num_ranks)  # each rank reads or writes as much, and all share the memory
            cpu = self.cpu_seconds[kind].at(num_bytes)
            return more * cpu, 0.0, max(0.0, self.seconds[kind].at(num_bytes) - cpu / min(1.0, cores))
        sent = sent_bytes(kind, num_bytes, num_ranks)
        cpu, wall = self.cpu_seconds[kind].at(sent), self.seconds[kind].at(sent)
        waiting = max(0.0, wall - max(cpu / min(1.0, cores), sent / self.bytes_per_second(cores)))
        return cpu, sent, waiting * self._further(num_ranks)

    def round_factor(self, num_ranks: int) -> float:
        """How much longer agreement takes than between the measured ranks: messages go through twice as many ranks with each step."""
        return 1.0 if self.is_memory else self._further(num_ranks)

    def _further(self, num_ranks: int) -> float:
        return max(1.0, math.log2(num_ranks) / math.log2(self.num_ranks))
