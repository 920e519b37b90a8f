"""How large buckets should be and how many should be in flight: tried in the first steps, and decided by the time steps took.

A state machine: it has no clock and does not communicate. It is told what steps took on this rank, and later what the ranks agreed on, so
every rank draws the same conclusion. What it may choose from gives the same gradients, bit for bit; only the time differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

BUCKET_BYTES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Sizes that are tried."""
DEFAULT_BUCKET_BYTES = 4 << 20
"""Until something else is chosen."""
SLOTS = (2, 4)
"""Numbers of slots that are tried, as far as there are so many."""
MIN_GAIN = 0.03
"""The default stays unless something else takes so much less of its time."""
STALL_FACTOR = 10
"""A step that took so many times the median was held up by something else: a checkpoint, a validation."""

_TRIAL_STEPS = 48
_MAX_STEPS_PER_VISIT = 8
_MIN_STEPS_PER_VISIT = 3  # the first one after a change does not count


@dataclass(frozen=True)
class Candidate:
    """What may be chosen."""

    bucket_bytes: int
    num_slots: int


@dataclass(frozen=True)
class Decision:
    """What was chosen, and what a step takes with it and with the default."""

    chosen: Candidate
    seconds: float
    default_seconds: float


def candidates(default: Candidate, bucket_bytes: Iterable[int], num_slots: Iterable[int], layout: Callable[[int], Sequence[Hashable]]) -> list[Candidate]:
    """The default, and what differs from it and from each other.

    ``layout`` tells the buckets for a size. Sizes that lead to the same ones are one candidate, and so are numbers of slots that there
    are not enough buckets for.
    """
    found: dict[Hashable, Candidate] = {}
    slots = list(num_slots)
    for candidate in [default, *(Candidate(size, count) for size in bucket_bytes for count in slots)]:
        buckets = tuple(layout(candidate.bucket_bytes))
        found.setdefault((buckets, min(candidate.num_slots, len(buckets))), candidate)
    return list(found.values())


class Tuner:
    """Tries candidates, of which the first is the default.

    Each is visited for a few steps, forth and back, so that what drifts falls on all of them alike. The fastest then meets the default
    once more: of many that are equally fast, one always looks better by chance.
    """

    def __init__(self, among: Sequence[Candidate]):
        assert among
        self.decision: Decision | None = None
        """None while there is something to try."""
        self._default = among[0]
        self._is_final = False
        self._visit = self._step = 0  # visits that are over, steps of the one that is not
        self._begin(list(among), min(_MAX_STEPS_PER_VISIT, max(_MIN_STEPS_PER_VISIT, _TRIAL_STEPS // (2 * len(among)))))
        if len(among) == 1:
            self._decide(self._default, math.nan, math.nan)

    @property
    def current(self) -> Candidate:
        """What is to be used now."""
        return self.decision.chosen if self.decision is not None else self._visits[min(self._visit, len(self._visits) - 1)]

    @property
    def is_through(self) -> bool:
        """Whether all visits are done, and :meth:`conclude` is next."""
        return self.decision is None and self._visit == len(self._visits)

    def step(self, seconds: float | None) -> bool:
        """A step with :attr:`current` is over; None: what it took says nothing. Whether the visit is over, too.

        Every rank tells of every step, so that all change at the same one.
        """
        assert self.decision is None
        assert not self.is_through
        self._step += 1
        if self._step > 1 and seconds is not None:
            self._seconds[self.current].append(seconds)
        if self._step < self._steps_per_visit:
            return False
        self._step = 0
        self._visit += 1
        return True

    def medians(self) -> list[float]:
        """What a step took on this rank with each candidate that was tried; infinity where nothing is known."""
        return [_without_stalls(seconds) for seconds in self._seconds.values()]

    def conclude(self, agreed: Sequence[float]) -> None:
        """Decide by :meth:`medians` as agreed between the ranks (the slowest rank is the step), or go on to the last comparison."""
        assert self.is_through
        tried = list(self._seconds)
        best = min(range(len(tried)), key=lambda i: agreed[i])
        if not agreed[best] <= (1 - MIN_GAIN) * agreed[0] < math.inf:
            self._decide(self._default, agreed[0], agreed[0])
        elif self._is_final:
            self._decide(tried[best], agreed[best], agreed[0])
        else:
            self._is_final = True
            self._begin([self._default, tried[best]], _MIN_STEPS_PER_VISIT)

    def _begin(self, among: list[Candidate], steps_per_visit: int) -> None:
        self._visits = among + among[::-1]
        self._steps_per_visit = steps_per_visit
        self._visit = self._step = 0
        self._seconds: dict[Candidate, list[float]] = {candidate: [] for candidate in among}

    def _decide(self, chosen: Candidate, seconds: float, default_seconds: float) -> None:
        self.decision = Decision(chosen, seconds, default_seconds)


def _without_stalls(seconds: Sequence[float]) -> float:
    """The median of what was not held up; infinity of nothing."""
    if not seconds:
        return math.inf
    limit = STALL_FACTOR * median(seconds)
    return median(s for s in seconds if s <= limit)
