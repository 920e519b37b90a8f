"""The communication thread: negotiate, encode, send, decode, deliver.

One thread a process owns every call into the transport. Users' threads hand it operations and wait for handles on an event, so signals
and Ctrl-C work. Idle, the thread sleeps on an event; waiting, it looks with growing pauses and never spins. Several exchanges are in
flight at once, each on a lane (a communicator) of its own; on one lane requests start in the order that all ranks agreed on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from ._promptness import make_prompt
from .compression import Finish, PieceBytes, Start, Step
from .errors import DuplicateNameError, EngineError, HorovodInternalError, PeerLeftError
from .negotiation import Agreement, Negotiator, Signature, Vote
from .settings import Settings
from .stalls import StallWatch
from .telemetry.last import LastCollective
from .telemetry.metrics import Metrics
from .telemetry.timeline import Timeline
from .transports import CONTROL, Pending, Transport, WireRequest

IDLE_LOOK_SECONDS = 0.5
"""How often an idle thread looks for notes from other ranks."""

Program: TypeAlias = Generator[WireRequest | Step, Any, Any]
"""What an operation does once agreed: yields requests, is sent the answers, returns the result."""


class Operation(Protocol):
    """A collective that a user asked for."""

    name: str
    kind: ClassVar[str]
    signature: bytes
    nbytes: int

    def vote(self) -> Vote:
        """What holds for it on this rank. Called once, on the communication thread."""

    def program(self, vote: Vote) -> Program:
        """Run it; ``vote`` is what holds on every rank."""

    def fusion_key(self) -> Hashable | None:
        """Ready neighbours with the same key may run as one; None: this one runs alone."""

    def fused(self, operations: Sequence[Any]) -> Program:
        """Run several as one; returns the list of their results."""


class Handle:
    """The promise of a result."""

    def __init__(self, name: str):
        self.name = name
        self._event = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._event.is_set()

    def wait(self) -> Any:
        """The result, when it is there. Raises what went wrong."""
        self._event.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def deliver(self, result: Any) -> None:
        """Fulfil the promise."""
        self._result = result
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """Break the promise."""
        self._error = error
        self._event.set()


@dataclass
class UseSlots:
    """Sends nothing: from its place in the agreed order on, every rank deals operations to so many lanes.

    Operations of other threads may be in flight: those that were dealt stay where they are. Whoever asks first may ask again; the others
    change nothing. The result says who may.
    """

    name: str
    num_slots: int
    is_granted: bool = False
    nbytes: int = 0
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "slots"

    def __post_init__(self) -> None:
        self.signature = Signature(name=self.name, kind=self.kind, op=str(self.num_slots)).encode()

    def vote(self) -> Vote:
        """Nothing can speak against it."""
        return Vote.ALL

    def fusion_key(self) -> Hashable | None:
        """It keeps its place."""
        return None

    def fused(self, operations: Sequence[Any]) -> Program:
        """Never."""
        raise AssertionError("slots are never fused")

    def program(self, vote: Vote) -> Program:
        """It was done when it was dealt."""
        yield from ()
        return self.is_granted


@dataclass
class _Submission:
    operation: Operation
    handle: Handle
    since: float = field(default_factory=time.monotonic)
    vote: Vote = Vote.ALL

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def signature(self) -> bytes:
        return self.operation.signature


class _Running:
    """A program under way on a lane."""

    def __init__(self, program: Program, transport: Transport, lane: int, metrics: Metrics, submissions: Sequence[_Submission] = ()):
        self._program, self._transport, self._lane, self._metrics = program, transport, lane, metrics
        self._pending: Pending | None = None
        self._started: list[Pending] = []
        self.submissions = submissions
        self.finished = False
        self.result: Any = None
        self.since = time.monotonic()
        self._resume(None)

    def step(self) -> bool:
        """Advance if the request waited for is done; whether anything moved."""
        if self.finished or self._pending is None:
            return False
        moved = self._progress()
        if not self._pending.done():
            return moved or self._pending.moved
        self._resume(self._pending.answer())
        return True

    def _progress(self) -> bool:
        """Let started requests progress, in the order in which they began; whether anything moved."""
        moved, self._started, started = False, [], self._started
        for pending in started:
            if not pending.done():
                self._started.append(pending)
            moved |= pending.moved
        return moved

    def _resume(self, answer: Any) -> None:
        start, waited, request = time.perf_counter(), self._metrics.waited(), None
        has_received = self._pending is not None and not isinstance(self._pending, _Known)
        try:
            request = self._program.send(answer)
        except StopIteration as stop:
            self.finished, self.result = True, stop.value
        if self._lane != CONTROL:
            is_decoding = has_received and (request is None or isinstance(request, Finish))
            self._metrics.coded(time.perf_counter() - start, self._metrics.waited() - waited, is_encoding=not is_decoding)
        if request is not None:
            self._pending = self._begin(request)
        if self._lane != CONTROL:
            self._metrics.codec_ms += (time.perf_counter() - start) * 1e3

    def _begin(self, request: WireRequest | Step) -> Pending:
        match request:
            case PieceBytes():
                return _Known(self._transport.piece_bytes(self._lane))
            case Start(inner):
                pending = self._begin(inner)
                self._started.append(pending)
                return _Known(pending)
            case Finish(token):
                started: Pending = token
                return started
        self._metrics.sent(self._transport.sent_bytes(request), control=self._lane == CONTROL)
        return self._transport.start(request, self._lane)


@dataclass(frozen=True)
class _Known:
    """What needs no waiting."""

    value: Any
    moved: ClassVar[bool] = True

    def done(self) -> bool:
        return True

    def answer(self) -> Any:
        return self.value


class Engine:
    """Runs operations over a transport."""

    def __init__(self, transport: Transport, settings: Settings, metrics: Metrics, last: LastCollective):
        topology = transport.topology
        self._transport, self._settings, self._metrics, self._last = transport, settings, metrics, last
        self._negotiator = Negotiator(topology.rank, topology.size, settings.cache_capacity)
        self._watch = StallWatch(transport, settings)
        self._lock = threading.Lock()
        self._inbox: deque[_Submission] = deque()
        self._in_flight: dict[str, _Submission] = {}  # submitted and not delivered, by name
        self._round: _Running | None = None
        self._next_round_at = self._round_delay = 0.0
        self._lanes: list[deque[Any]] = [deque() for _ in range(settings.slots)]
        self._active: list[_Running | None] = [None] * settings.slots
        self._next_lane = 0
        self._slots_owner: str | None = None
        self.timeline: Timeline | None = None
        """Where to note what happens; may come and go at any time."""
        self._use_slots(settings.slots_in_use or settings.slots)
        self._wide = False  # as agreed last
        self._num_dealt = 0
        self._wake = threading.Event()
        self._leave = False
        self._left: frozenset[int] = frozenset()
        self._refusal: HorovodInternalError | None = None  # why nothing can be submitted any more
        self._thread: threading.Thread | None = None
        if topology.size > 1:
            self._thread = threading.Thread(target=self._run, name="hvdlite", daemon=True)
            self._thread.start()

    # --- the users' side ---

    def submit(self, operation: Operation) -> Handle:
        """Queue an operation.

        Raises:
            DuplicateNameError: its name is in flight on this rank.
            PeerLeftError: another rank has finished.
        """
        submission = _Submission(operation, Handle(operation.name))
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if submission.name in self._in_flight:
                raise DuplicateNameError(
                    f"{submission.name!r} is still being processed on rank {self._transport.topology.rank}; names in flight are unique; "
                    "wait for its handle or pass another name"
                )
            if self._thread is not None:
                self._in_flight[submission.name] = submission
                self._inbox.append(submission)
        if self._thread is None:
            self._run_alone(submission)
        elif not self._wake.is_set():
            self._wake.set()
        return submission.handle

    def stop(self) -> bool:
        """Leave the job: finish what is agreed, tell the other ranks, end the thread. Whether every rank left together."""
        with self._lock:
            self._refusal = self._refusal or EngineError("hvdlite has been shut down; nothing can be communicated after that; call hvdlite.init() again")
        if self._thread is None:
            return True
        self._leave = True
        self._wake.set()
        self._thread.join()
        return len(self._left) == self._transport.topology.size

    @property
    def is_broken(self) -> bool:
        """Whether the thread ended with a fault, so that the transport is in an unknown state."""
        return isinstance(self._refusal, EngineError) and self._refusal.__cause__ is not None

    def _run_alone(self, submission: _Submission) -> None:
        """A world of one needs no thread: every request is its own answer."""
        if timeline := self.timeline:
            timeline.run(submission.operation.kind, submission.name)
        running = _Running(submission.operation.program(submission.operation.vote()), self._transport, 0, self._metrics)
        while not running.finished:
            running.step()
        if timeline:
            timeline.end(submission.name)
        submission.handle.deliver(running.result)

    # --- the communication thread ---

    def _run(self) -> None:
        pause = _Pause(self._settings.poll_min_us * 1e-6, self._settings.poll_max_us * 1e-6)
        make_prompt()
        try:
            while not self._has_ended():
                moved = self._take()
                moved |= self._negotiate()
                moved |= self._advance()
                if self._watch.is_due():
                    self._look_for_stalls()
                if moved:
                    pause.reset()
                elif self._is_idle():
                    self._wake.wait(IDLE_LOOK_SECONDS)
                    self._wake.clear()
                else:
                    pause.take()
            self._take()
        except BaseException as cause:  # noqa: BLE001 - whatever it was, every waiting thread must hear of it
            self._break_down(cause)

    def _has_ended(self) -> bool:
        return self._leave and bool(self._left) and not any(self._active) and not any(self._lanes)

    def _is_idle(self) -> bool:
        return not (self._inbox or self._round or self._negotiator.has_business or self._leave or any(self._active) or any(self._lanes))

    def _take(self) -> bool:
        moved = bool(self._inbox)
        while self._inbox:
            submission = self._inbox.popleft()
            if self._left or self._negotiator.leaving:  # it came in just before submissions were refused
                assert self._refusal is not None
                self._fail([submission.name], self._refusal)
                continue
            submission.vote = submission.operation.vote()
            if timeline := self.timeline:
                timeline.negotiate(submission.operation.kind, submission.name, submission.since)
            self._negotiator.add(submission)
            self._next_round_at = self._round_delay = 0.0
        return moved

    def _negotiate(self) -> bool:
        if self._left:
            return False
        if self._leave and self._round is None and not self._negotiator.leaving and not any(self._active) and not any(self._lanes):
            self._fail(self._negotiator.pending, EngineError("hvdlite.shutdown() was called before this collective was complete; wait for its handle first"))
            self._negotiator.leave()
        if self._round is None:
            if not self._negotiator.has_business or time.monotonic() < self._next_round_at:
                return False
            if timeline := self.timeline:
                timeline.cycle()
            self._negotiator.wide = self._transport.is_wide
            self._round = _Running(self._negotiator.round(), self._transport, CONTROL, self._metrics)
        if not self._round.step():
            return False
        if self._round.finished:
            self._metrics.negotiation_rounds += 1
            self._settle(self._round.result)
            self._round = None
        return True

    def _settle(self, agreement: Agreement) -> None:
        for name, error in agreement.failed:
            self._fail([name], error)
        self._wide = agreement.wide
        self._schedule(agreement.ready)
        if agreement.leaving:
            self._part(agreement.leaving)
        elif agreement.settled_something:
            self._round_delay = 0.0
        else:  # ranks wait for different things: no hurry, and less with every round in vain
            self._round_delay = min(max(0.5e-3, 1.2 * self._round_delay), 10e-3)
            self._next_round_at = time.monotonic() + self._round_delay

    def _part(self, leaving: frozenset[int]) -> None:
        self._left = leaving
        others = sorted(leaving - {self._transport.topology.rank})
        if others and self._transport.topology.rank not in leaving:
            waiting = self._negotiator.pending
            what = f"waits for {waiting[0]!r}" if waiting else "goes on"
            error = PeerLeftError(
                f"rank {others[0]} has finished while rank {self._transport.topology.rank} {what}; every rank must run the same number of collectives; "
                f"give every rank the same number of batches, and see the output of rank {others[0]} for an error"
            )
            with self._lock:
                self._refusal = error
            self._fail(waiting, error)
            self._negotiator.clear()

    def _schedule(self, ready: Sequence[tuple[str, Vote]]) -> None:
        """Deal agreed operations to the lanes in turn; neighbours that may be fused travel together."""
        group: list[_Submission] = []
        key: Hashable | None = None
        size = 0
        for name, vote in ready:
            submission = self._in_flight[name]
            submission.vote = vote
            self._ended([submission])
            its_key = submission.operation.fusion_key() if vote == Vote.ALL else None
            full = size + submission.operation.nbytes > self._settings.fusion_threshold_bytes
            if group and (its_key is None or its_key != key or full):
                self._deal(group)
                group, size = [], 0
            group.append(submission)
            size += submission.operation.nbytes
            key = its_key
            if its_key is None:
                self._deal(group)
                group, size = [], 0
        if group:
            self._deal(group)

    def _deal(self, group: list[_Submission]) -> None:
        operation = group[0].operation
        if isinstance(operation, UseSlots) and self._slots_owner in (None, operation.name):
            self._slots_owner, operation.is_granted = operation.name, True
            self._use_slots(operation.num_slots)
        self._lanes[self._next_lane].append((group, self._wide, self._num_dealt))
        self._num_dealt += 1
        self._next_lane = (self._next_lane + 1) % self._slots_in_use

    def _use_slots(self, num_slots: int) -> None:
        """Deal to so many lanes, from the first one on. Lanes keep what they have."""
        assert 0 < num_slots <= len(self._lanes)
        self._slots_in_use, self._next_lane = num_slots, 0
        self._metrics.slots = num_slots

    def _advance(self) -> bool:
        moved = False
        for lane, running in enumerate(self._active):
            if running is None and self._lanes[lane]:
                running = self._begin(lane, *self._lanes[lane].popleft())
                moved = True
            elif running is not None:
                moved |= running.step()
            if running is not None and running.finished:
                self._complete(running)
                running = None
            self._active[lane] = running
        return moved

    def _begin(self, lane: int, group: list[_Submission], wide: bool, turn: int) -> _Running:
        operation = group[0].operation
        self._transport.prepare(lane, wide, turn)
        self._last.write(operation.kind, group[0].name)
        if timeline := self.timeline:
            for submission in group:
                timeline.run(submission.operation.kind, submission.name)
        program = operation.fused([s.operation for s in group]) if len(group) > 1 else operation.program(group[0].vote)
        return _Running(program, self._transport, lane, self._metrics, group)

    def _complete(self, running: _Running) -> None:
        results = running.result if len(running.submissions) > 1 else [running.result]
        self._metrics.exchanges += 1
        self._ended(running.submissions)
        with self._lock:
            for submission in running.submissions:
                del self._in_flight[submission.name]
        for submission, result in zip(running.submissions, results, strict=True):
            submission.handle.deliver(result)

    def _ended(self, submissions: Sequence[_Submission]) -> None:
        """What these did last is over."""
        if timeline := self.timeline:
            for submission in submissions:
                timeline.end(submission.name)

    # --- trouble ---

    def _look_for_stalls(self) -> None:
        waiting = [(s.name, s.since) for s in self._in_flight.copy().values()]
        error = self._watch.look(waiting)
        if error is not None:
            raise error

    def _fail(self, names: Sequence[str], error: BaseException) -> None:
        for name in list(names):
            with self._lock:
                submission = self._in_flight.pop(name)
            self._ended([submission])
            submission.handle.fail(error)

    def _break_down(self, cause: BaseException) -> None:
        error = (
            cause
            if isinstance(cause, HorovodInternalError)
            else EngineError(f"the communication thread failed: {type(cause).__name__}: {cause}; no collective can follow")
        )
        error.__cause__ = cause if error is not cause else error.__cause__
        with self._lock:
            self._refusal = EngineError(str(error))
            self._refusal.__cause__ = cause
            waiting, self._in_flight = list(self._in_flight.values()), {}
        for submission in waiting:
            submission.handle.fail(error)


class _Pause:
    """Growing pauses: short while an answer is near, up to a few milliseconds when the wait gets long."""

    def __init__(self, shortest: float, longest: float):
        self._shortest, self._longest = shortest, longest
        self.reset()

    def reset(self) -> None:
        self._pause = self._shortest
        self._started = 0.0

    def take(self) -> None:
        now = time.monotonic()
        self._started = self._started or now
        waited = now - self._started
        limit = self._longest if waited < 0.1 else max(self._longest, 1e-3 if waited < 2 else 5e-3)
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, limit)
