"""One training step as the engine runs it: computation, agreement, lanes, encoding, the wire. Pure arithmetic, no clock.

All ranks do the same at the same time, so one is played. Things take time in three ways. *Work* needs a core: the training thread and the communication
thread share the rank's cores, evenly when there are too few. *Sending* needs the wire, which carries one request after the other in the order that the ranks
agreed on, and a core for as long as the system copies. *Waiting* needs nothing: a round of agreement, the delay of a link. Between two events all rates are
constant, so the simulation goes from event to event.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

_TINY = 1e-12


@dataclass(frozen=True)
class Segment:
    """A part of the computation, and the bucket that is complete after it; None: the end of the backward pass."""

    cpu_seconds: float
    other_seconds: float
    """In which it waits for something else than a core: data, a disk, an accelerator."""
    bucket: int | None


@dataclass(frozen=True)
class Work:
    """Of the communication thread."""

    cpu_seconds: float


@dataclass(frozen=True)
class Send:
    """A request to all ranks. ``token``: it is under way while the exchange goes on, until :class:`Await`; None: it is waited for."""

    cpu_seconds: float
    wire_bytes: float
    delay_seconds: float
    """Before the answer is there, beside sending."""
    takes_turns: bool = True
    """Large requests do; a small one is through at once, behind what lies in the queue of the system."""
    token: int | None = None


@dataclass(frozen=True)
class Await:
    """The answer to what was sent."""

    token: int


Action: TypeAlias = Work | Send | Await


@dataclass(frozen=True)
class Wire:
    """What joins this rank to the others."""

    bytes_per_second: float = math.inf
    burst_bytes: float = 0.0
    """What it takes at once after a pause (a token bucket, as where a provider or ``tc`` limits a rate); none on a plain cable."""
    queue_bytes: float = 1e6
    """At most so much lies in the system's queue before a small message."""


@dataclass(frozen=True)
class Machine:
    """What one rank has."""

    cores: float
    """Its share of the machine's."""
    threads: float
    """Cores that the computation uses when it can."""
    slots: int
    wire: Wire
    polling: float = 0.0
    """Share of a core that waiting for messages takes."""
    interference: float = 0.0
    """How much slower the computation gets for each core that is busy with sending: the system's part of that runs wherever it likes."""


@dataclass(frozen=True)
class Outcome:
    """Of one step, in seconds."""

    step: float
    computed: float
    """From its beginning to the end of the backward pass, what communication took from it included."""
    exposed: float
    """What the training waited."""
    sending: float
    """In which the wire carried something."""
    communication_cpu: float
    burst_left_bytes: float = 0.0


@dataclass
class _Sending:
    turn: tuple[int, int]
    lane: int
    send: Send
    bytes_left: float
    is_through: bool = False


@dataclass
class _Lane:
    waiting: deque[int] = field(default_factory=deque)
    bucket: int | None = None
    position: int = 0
    done: set[int] = field(default_factory=set)
    awaited: int | None = None
    """A token, or -1 for a request or work that is waited for."""


Latency: TypeAlias = Callable[[bool], float]
"""Seconds, given whether the training thread computes meanwhile."""


def simulate(
    segments: Sequence[Segment],
    programs: Sequence[Sequence[Action]],
    machine: Machine,
    round_seconds: Latency,
    wake_seconds: Latency = lambda busy: 0.0,
    burst_left_bytes: float | None = None,
) -> Outcome:
    """Play one step.

    Args:
        segments: the computation, in order; every bucket is complete after one of them.
        programs: what is done for each bucket, once it is agreed on.
        machine: cores and wire.
        round_seconds: what a round of agreement takes.
        wake_seconds: until the communication thread runs after an answer has come.
        burst_left_bytes: of the wire, at the beginning; all of it by default.
    """
    return _Simulation(segments, programs, machine, round_seconds, wake_seconds, burst_left_bytes).run()


class _Simulation:
    def __init__(
        self,
        segments: Sequence[Segment],
        programs: Sequence[Sequence[Action]],
        machine: Machine,
        round_seconds: Latency,
        wake_seconds: Latency,
        burst_left_bytes: float | None,
    ):
        self._segments, self._programs, self._machine = segments, programs, machine
        self._round_seconds, self._wake_seconds = round_seconds, wake_seconds
        self._now = self._sent_seconds = self._cpu = 0.0
        self._segment = 0
        self._cpu_left, self._other_left = segments[0].cpu_seconds, segments[0].other_seconds
        self._computed = 0.0
        self._offered: list[int] = []
        self._round: list[int] | None = None
        self._lanes = [_Lane() for _ in range(machine.slots)]
        self._turns: dict[int, int] = {}  # bucket -> its number in the agreed order
        self._work: deque[tuple[list[float], Callable[[], None]]] = deque()
        self._sending: list[_Sending] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._left = len(programs)
        self._burst = machine.wire.burst_bytes if burst_left_bytes is None else burst_left_bytes

    def run(self) -> Outcome:
        self._finish_segments()
        while self._left or self._computes:
            self._advance()
        exposed = self._now - self._computed
        return Outcome(self._now, self._computed, exposed, self._sent_seconds, self._cpu, self._burst)

    # --- rates between two events ---

    @property
    def _computes(self) -> bool:
        return self._segment < len(self._segments)

    @property
    def _needs_core(self) -> bool:
        return self._computes and self._cpu_left > _TINY

    def _head(self) -> _Sending | None:
        """Whose turn it is on the wire."""
        return min((s for s in self._sending if s.bytes_left > _TINY), key=lambda s: s.turn, default=None)

    def _advance(self) -> None:
        machine, head = self._machine, self._head()
        rate = self._wire_rate(head)
        limit = min(machine.cores, 1.0)
        if self._needs_core:
            limit = min(1.0, max(machine.cores - machine.threads, machine.cores / (machine.threads + 1)))
        per_byte = head.send.cpu_seconds / head.send.wire_bytes if head is not None else 0.0
        copying = min(rate * per_byte, limit / 2 if self._work else limit) if per_byte else 0.0
        rate = copying / per_byte if per_byte else rate
        working = limit - copying if self._work else 0.0
        polling = 0.0 if self._work or not self._waits else min(machine.polling, limit - copying)
        used = copying + working + polling
        computing = min(machine.threads, machine.cores - used) / (1 + machine.interference * copying) if self._needs_core else 0.0
        self._pass(self._next_event(head, rate, working, computing), head, rate, working, computing, used)

    @property
    def _waits(self) -> bool:
        return bool(self._sending) or self._round is not None or bool(self._timers)

    def _wire_rate(self, head: _Sending | None) -> float:
        if head is None:
            return 0.0
        return math.inf if self._burst > _TINY and self._machine.wire.burst_bytes else self._machine.wire.bytes_per_second

    def _next_event(self, head: _Sending | None, rate: float, working: float, computing: float) -> float:
        times = [self._timers[0][0] - self._now] if self._timers else []
        if self._needs_core:
            times.append(self._cpu_left / computing)
        elif self._computes:
            times.append(self._other_left)
        if self._work:
            times.append(self._work[0][0][0] / working)
        if head is not None:
            times.append(head.bytes_left / rate)
            limit = self._machine.wire.bytes_per_second
            if self._burst > _TINY and rate > limit:
                times.append(self._burst / (rate - limit) if rate < math.inf else 0.0)
        return max(0.0, min(times))

    def _pass(self, seconds: float, head: _Sending | None, rate: float, working: float, computing: float, used: float) -> None:
        self._now += seconds
        self._cpu += used * seconds
        self._move(seconds, head, rate)
        if self._work:
            self._work[0][0][0] -= working * seconds
            if self._work[0][0][0] <= _TINY:
                self._work.popleft()[1]()
        if self._needs_core:
            self._cpu_left -= computing * seconds
        elif self._computes:
            self._other_left -= seconds
        self._finish_segments()
        while self._timers and self._timers[0][0] <= self._now + _TINY:
            heapq.heappop(self._timers)[2]()

    def _move(self, seconds: float, head: _Sending | None, rate: float) -> None:
        wire = self._machine.wire
        sent = 0.0
        if head is not None:
            sent = head.bytes_left if rate == math.inf and (not wire.burst_bytes or head.bytes_left <= self._burst) else min(head.bytes_left, rate * seconds)
            if rate == math.inf and wire.burst_bytes:
                sent = min(head.bytes_left, self._burst)
            head.bytes_left -= sent
            self._sent_seconds += seconds
        if wire.burst_bytes:
            self._burst = min(wire.burst_bytes, max(0.0, self._burst + wire.bytes_per_second * seconds - sent))
        if head is not None and head.bytes_left <= _TINY * max(1.0, head.send.wire_bytes):
            head.bytes_left = 0.0
            self._through(head)

    # --- events ---

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._now + seconds, next(self._sequence), then))

    def _finish_segments(self) -> None:
        while self._computes and self._cpu_left <= _TINY and self._other_left <= _TINY:
            bucket = self._segments[self._segment].bucket
            self._segment += 1
            following = self._segments[self._segment : self._segment + 1]
            if not following:
                self._computed = self._now
            for segment in following:
                self._cpu_left, self._other_left = segment.cpu_seconds, segment.other_seconds
            if bucket is not None:
                self._offered.append(bucket)
        self._agree()

    def _agree(self) -> None:
        if self._round is None and self._offered:
            self._round, self._offered = self._offered, []
            self._after(self._round_seconds(self._needs_core) + self._queued_seconds(), self._deal)

    def _deal(self) -> None:
        assert self._round is not None
        for bucket in self._round:
            lane = self._lanes[len(self._turns) % len(self._lanes)]
            self._turns[bucket] = len(self._turns)
            lane.waiting.append(bucket)
        self._round = None
        self._agree()
        for number in range(len(self._lanes)):
            self._begin_next(number)

    def _begin_next(self, number: int) -> None:
        lane = self._lanes[number]
        if lane.bucket is None and lane.waiting:
            lane.bucket, lane.position, lane.done, lane.awaited = lane.waiting.popleft(), 0, set(), None
            self._resume(number)

    def _resume(self, number: int) -> None:
        """Go on with a lane's exchange until it waits for something."""
        lane = self._lanes[number]
        assert lane.bucket is not None
        program = self._programs[lane.bucket]
        while lane.position < len(program):
            action = program[lane.position]
            lane.position += 1
            match action:
                case Work(seconds):
                    if seconds > _TINY:
                        self._work.append(([seconds], lambda: self._resume(number)))
                        return
                case Await(token):
                    if token not in lane.done:
                        lane.awaited = token
                        return
                case Send():
                    self._start(number, action)
                    if action.token is None:
                        lane.awaited = -1
                        return
        lane.bucket = None
        self._left -= 1
        self._begin_next(number)

    def _start(self, number: int, send: Send) -> None:
        lane = self._lanes[number]
        assert lane.bucket is not None
        sending = _Sending((self._turns[lane.bucket], next(self._sequence)), number, send, send.wire_bytes)
        self._sending.append(sending)
        if send.takes_turns and send.wire_bytes > _TINY:
            return
        sending.bytes_left = 0.0
        alone = send.wire_bytes / self._machine.wire.bytes_per_second + self._queued_seconds()
        if send.cpu_seconds > _TINY:
            self._work.append(([send.cpu_seconds], lambda: self._after(alone, lambda: self._through(sending))))
        else:
            self._after(alone, lambda: self._through(sending))

    def _queued_seconds(self) -> float:
        """What a small message waits for, behind what was sent before."""
        head, wire = self._head(), self._machine.wire
        return 0.0 if head is None else max(0.0, min(head.bytes_left, wire.queue_bytes) - self._burst) / wire.bytes_per_second

    def _through(self, sending: _Sending) -> None:
        self._after(sending.send.delay_seconds + self._wake_seconds(self._needs_core), lambda: self._answered(sending))

    def _answered(self, sending: _Sending) -> None:
        self._sending.remove(sending)
        lane = self._lanes[sending.lane]
        token = -1 if sending.send.token is None else sending.send.token
        lane.done.add(token)
        if lane.awaited == token:
            lane.awaited = None
            self._resume(sending.lane)
