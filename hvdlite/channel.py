"""What a set of ranks has to communicate: their agreement, and the lanes on which what they agreed runs.

The communication thread drives a channel for all ranks, and one for each process set that this rank belongs to. Channels share nothing
but the thread: no set waits for another.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .attendance import Attendance
from .errors import DuplicateNameError, EngineError, HorovodInternalError, PeerLeftError, ProcessSetError, SettingError, UnsupportedError
from .members import Members, listed
from .negotiation import Agreement, Negotiator, Vote
from .orders import Order, UseSlots
from .running import Running
from .settings import Settings
from .stalls import StallWatch
from .submissions import Handle, Operation, Submission
from .telemetry.last import LastCollective
from .telemetry.metrics import Metrics
from .telemetry.timeline import Timeline
from .transports import CONTROL, Transport

_WITH_JOIN_IN_HOROVOD = ("allreduce", "barrier")
_ROUNDS_TO_AGREE = 4
"""In so many rounds all is settled that ranks can agree on: one that some began early, two to announce and compare what is new, and one more."""


@dataclass
class Common:
    """What the channels of a process have in common."""

    settings: Settings
    metrics: Metrics
    last: LastCollective
    wake: threading.Event = field(default_factory=threading.Event)
    """Set when the communication thread has something to do."""
    timeline: Timeline | None = None
    """Where to note what happens; may come and go at any time."""


class Channel:
    """One rank's end of what a set of ranks has in common."""

    def __init__(self, transport: Transport, common: Common, members: Members):
        topology, settings = transport.topology, common.settings
        self.transport, self.topology, self.members = transport, topology, members
        self._common = common
        self.counters: dict[str, int] = {}
        self._negotiator = Negotiator(topology.rank, topology.size, settings.cache_capacity, members)
        self._watch = StallWatch(transport, settings, members)
        self._lock = threading.Lock()
        self._inbox: deque[Submission] = deque()
        self._in_flight: dict[str, Submission] = {}  # submitted and not delivered, by name
        self._round: Running | None = None
        self._next_round_at = self._round_delay = 0.0
        self._lanes: list[deque[Any]] = [deque() for _ in range(settings.slots)]
        self._active: list[Running | None] = [None] * settings.slots
        self._next_lane = 0
        self._slots_owner: str | None = None
        self._use_slots(settings.slots_in_use or settings.slots)
        self._wide = False  # as agreed last
        self._num_dealt = 0
        self._attendance = Attendance(transport)
        self._held: deque[Any] = deque()  # agreed by those present, before they have a transport
        self._join: Handle | None = None
        self._leave = self._agree_first = self._is_closed = False
        self._in_vain = 0  # rounds in succession that settled nothing
        self.on_departure: Callable[[frozenset[int]], None] | None = None
        """Told of ranks that have left, by the communication thread."""
        self._left: frozenset[int] = frozenset()
        self._refusal: Exception | None = None  # why nothing can be submitted any more

    # --- the users' side ---

    @property
    def rank(self) -> int:
        """This process's number among all."""
        return self.members.ranks[self.topology.rank]

    def auto_name(self, kind: str) -> str:
        """A name for a collective that was given none; equal on all ranks that call in the same order."""
        self.counters[kind] = self.counters.get(kind, 0) + 1
        return f"{kind}.noname.{self.counters[kind]}"

    @contextmanager
    def named(self, name: str | None, kind: str) -> Iterator[str]:
        """The name of a call. One that is refused uses up no number: other ranks, where it is accepted, would count differently from then on."""
        before = self.counters.get(kind, 0)
        try:
            yield name or self.auto_name(kind)
        except BaseException:
            self.counters[kind] = before
            raise

    def submit(self, operation: Operation) -> Handle:
        """Queue an operation.

        Raises:
            DuplicateNameError: its name is in flight on this rank.
            PeerLeftError: another rank has finished.
        """
        submission = Submission(operation, Handle(operation.name))
        is_alone = self.topology.size == 1
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._join is not None:
                raise self._has_joined(repr(submission.name))
            if submission.name in self._in_flight:
                raise DuplicateNameError(
                    f"{submission.name!r}{self.members.where} is still being processed on rank {self.rank}; names in flight are unique; "
                    "wait for its handle or pass another name"
                )
            if not is_alone:
                self._in_flight[submission.name] = submission
                self._inbox.append(submission)
        if is_alone:
            self._run_alone(submission)
        elif not self._common.wake.is_set():
            self._common.wake.set()
        return submission.handle

    def join(self) -> Handle:
        """Take no part any more, until all ranks do so. The handle gives the last rank to join.

        What this rank has submitted before is done first. Ranks that go on go on among themselves.

        Raises:
            SettingError: this rank has joined already.
        """
        handle = Handle("join")
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._join is not None:
                raise self._has_joined("join()")
            if self.topology.size > 1:
                self._join = handle
        if self._join is None:
            handle.deliver(self.rank, 1)
        self._common.wake.set()
        return handle

    @property
    def num_joins(self) -> int:
        """How often all ranks have joined, and begun anew."""
        return self._attendance.num_joins

    def _has_joined(self, what: str) -> SettingError:
        return SettingError(
            f"{what} on rank {self.rank}, which has called hvd.join(); it takes part in nothing until all ranks have; wait for join() to return"
        )

    def refuse(self, reason: Exception) -> None:
        """Take nothing any more, unless there is a reason for that already."""
        with self._lock:
            self._refusal = self._refusal or reason

    def leave(self, *, agree_first: bool = False) -> None:
        """Finish what is agreed, then tell the other ranks that this one is done. :attr:`has_ended` says when they know.

        Args:
            agree_first: no rank submits anything any more; what all have submitted is agreed on and done first.
        """
        self._agree_first, self._in_vain = agree_first, 0
        self._leave = True
        self._common.wake.set()

    @property
    def left_together(self) -> bool:
        """Whether every rank left in the same round."""
        return len(self._left) == self.topology.size or self.topology.size == 1

    def _run_alone(self, submission: Submission) -> None:
        """A set of one needs no thread: every request is its own answer."""
        if timeline := self._common.timeline:
            timeline.run(submission.operation.kind, self._label(submission))
        running = Running(submission.operation.program(submission.operation.vote()), self.transport, 0, self._common.metrics)
        while not running.finished:
            running.step()
        if timeline:
            timeline.end(self._label(submission))
        submission.handle.deliver(running.result, 1)

    # --- the communication thread ---

    @property
    def has_ended(self) -> bool:
        """Whether this rank has left, or was left by the others, and nothing is under way any more."""
        return self._leave and (bool(self._left) or self.topology.size == 1) and not self._is_busy

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to be done before somebody submits something."""
        has_business = self._negotiator.has_business or self._join is not None
        return not (self._inbox or self._round or has_business or (self._leave and not self.has_ended) or self._is_busy)

    @property
    def _is_busy(self) -> bool:
        return any(self._active) or any(self._lanes) or bool(self._held)

    def look(self) -> bool:
        """Take what was submitted, and let what is under way progress; whether anything moved."""
        if self._is_closed:
            return False
        moved = self._take()
        moved |= self._negotiate()
        moved |= self._advance()
        if self._watch.is_due():
            self._look_for_stalls()
        return moved

    def end(self) -> None:
        """After the last look: refuse what came in just before submissions were refused."""
        self._take()

    def close(self) -> None:
        """After :meth:`end`, with every other rank: free what the transport has taken."""
        self._is_closed = True  # this round of looks may still come here
        self._attendance.close()
        self.transport.close()

    def _take(self) -> bool:
        moved = bool(self._inbox)
        while self._inbox:
            submission = self._inbox.popleft()
            if self._left or self._negotiator.leaving:  # it came in just before submissions were refused
                assert self._refusal is not None
                self._fail([submission.name], self._refusal)
                continue
            submission.vote = submission.operation.vote()
            if timeline := self._common.timeline:
                timeline.negotiate(submission.operation.kind, self._label(submission), submission.since)
            self._negotiator.add(submission)
            self._next_round_at = self._round_delay = 0.0
        return moved

    def _negotiate(self) -> bool:
        if self._left or self.topology.size == 1:
            return False
        if self._leave and self._round is None and not self._negotiator.leaving and not self._is_busy and not self._may_agree:
            self._fail(self._negotiator.pending, self._too_early())
            self._negotiator.leave()
        if self._join is not None and self._round is None and not (self._negotiator.joined or self._negotiator.has_business or self._inbox or self._is_busy):
            self._negotiator.join()
        if self._round is None:
            if not self._negotiator.has_business or time.monotonic() < self._next_round_at:
                return False
            if timeline := self._common.timeline:
                timeline.cycle()
            self._negotiator.wide = self.transport.is_wide
            self._round = Running(self._negotiator.round(), self.transport, CONTROL, self._common.metrics)
        if not self._round.step():
            return False
        if self._round.finished:
            self._common.metrics.negotiation_rounds += 1
            self._settle(self._round.result)
            self._round = None
        return True

    def _settle(self, agreement: Agreement) -> None:
        for name, error in agreement.failed:
            if name in self._in_flight:  # one that has joined has no part in it
                self._fail([name], error)
        self._wide = agreement.wide
        if agreement.last_to_join is not None:
            self._begin_anew(agreement.last_to_join)
        else:
            if agreement.joined != self._attendance.joined:
                self._attendance.without(agreement.joined)
            if not self._negotiator.joined:
                self._schedule(self._possible(agreement.ready))
        if agreement.leaving:
            self._part(agreement.leaving)
        elif agreement.settled_something:
            self._round_delay, self._in_vain = 0.0, 0
        else:  # ranks wait for different things: no hurry, and less with every round in vain
            self._in_vain += 1
            self._round_delay = min(max(0.5e-3, 1.2 * self._round_delay), 10e-3)
            self._next_round_at = time.monotonic() + self._round_delay

    def _begin_anew(self, last: int) -> None:
        """All ranks have joined, and none has anything under way."""
        self._attendance.begin_anew()
        self._next_lane = self._num_dealt = 0
        with self._lock:
            handle, self._join = self._join, None
        assert handle is not None
        handle.deliver(self.members.ranks[last], self.topology.size)

    def _possible(self, ready: list[tuple[str, Vote]]) -> list[tuple[str, Vote]]:
        """Of what is agreed, what can be done without the ranks that have joined. The rest fails, on every rank."""
        if self._attendance.is_whole:
            return ready
        found, joined = [], self._attendance.joined
        for name, vote in ready:
            operation = self._in_flight[name].operation
            error = operation.why_not(joined, self.members)
            if self._is_as_horovod and not isinstance(operation, UseSlots) and operation.kind not in _WITH_JOIN_IN_HOROVOD:
                error = UnsupportedError(
                    f"{name!r}: {operation.kind} while {listed(joined, self.members)} joined is not supported by Horovod, as which hvdlite runs here; "
                    "an allreduce is expected; set HVDLITE_JOIN=active"
                )
            if error is None:
                found.append((name, vote))
            else:
                self._fail([name], error)
        return found

    @property
    def _is_as_horovod(self) -> bool:
        return self._common.settings.join == "horovod"

    @property
    def _may_agree(self) -> bool:
        """Whether this rank, before it leaves, waits for agreement on what was submitted."""
        return self._agree_first and bool(self._negotiator.pending) and self._in_vain < _ROUNDS_TO_AGREE

    def _too_early(self) -> Exception:
        """For what this rank waits for when it leaves."""
        if isinstance(self._refusal, PeerLeftError):
            return self._refusal
        what = f"{self.members.set_name} was removed" if isinstance(self._refusal, ProcessSetError) else "hvdlite.shutdown() was called"
        return EngineError(f"{what} before this collective was complete; wait for its handle first")

    def _part(self, leaving: frozenset[int]) -> None:
        self._left = leaving
        others = sorted(leaving - {self.topology.rank})
        if others and self.topology.rank not in leaving:
            if isinstance(self._refusal, ProcessSetError):  # this rank is about to leave as well
                error = self._too_early()
            else:
                error = self.left_behind(self.members.ranks[others[0]])
                with self._lock:
                    self._refusal = error
            self._fail(self._negotiator.pending, error)
            self._negotiator.clear()
            with self._lock:
                join, self._join = self._join, None
            if join is not None:
                join.fail(error)
            if self.on_departure is not None:
                self.on_departure(frozenset(self.members.ranks[r] for r in others))

    def left_behind(self, other: int) -> PeerLeftError:
        """What to say of a rank that has left."""
        waiting = self._negotiator.pending
        what = f"waits for {waiting[0]!r}" if waiting else "goes on"
        return PeerLeftError(
            f"rank {other} has finished while rank {self.rank} {what}{self.members.where}; every rank must run the same number of collectives; "
            f"give every rank the same number of batches, and see the output of rank {other} for an error"
        )

    def _schedule(self, ready: Sequence[tuple[str, Vote]]) -> None:
        """Deal agreed operations to the lanes in turn; neighbours that may be fused travel together."""
        group: list[Submission] = []
        key: Hashable | None = None
        size = 0
        for name, vote in ready:
            submission = self._in_flight[name]
            submission.vote = vote
            self._ended([submission])
            its_key = submission.operation.fusion_key() if vote == Vote.ALL else None
            full = size + submission.operation.nbytes > self._common.settings.fusion_threshold_bytes
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

    def _deal(self, group: list[Submission]) -> None:
        if self._attendance.has_changed:
            self._held.append((group, self._wide))
        else:
            self._deal_to_lane(group, self._wide)

    def _deal_held(self) -> bool:
        """What those present have agreed on waits until nothing runs that all had agreed on: then they make a transport."""
        if not self._held or any(self._active) or any(self._lanes):
            return False
        self._attendance.follow()
        while self._held:
            self._deal_to_lane(*self._held.popleft())
        return True

    def _deal_to_lane(self, group: list[Submission], wide: bool) -> None:
        operation = group[0].operation
        if isinstance(operation, UseSlots) and self._attendance.is_whole and self._slots_owner in (None, operation.name):
            self._slots_owner, operation.is_granted = operation.name, True
            self._use_slots(operation.num_slots)
        if isinstance(operation, Order):  # these run one after the other, in the same order on every rank
            self._lanes[0].append((group, wide, self._num_dealt))
        else:
            self._lanes[self._next_lane].append((group, wide, self._num_dealt))
            self._next_lane = (self._next_lane + 1) % self._slots_in_use
        self._num_dealt += 1

    def _use_slots(self, num_slots: int) -> None:
        """Deal to so many lanes, from the first one on. Lanes keep what they have."""
        assert 0 < num_slots <= len(self._lanes)
        self._slots_in_use = num_slots
        self._next_lane = 0
        if not self.members.set_id:
            self._common.metrics.slots = num_slots

    def _advance(self) -> bool:
        moved = self._deal_held()
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

    def _begin(self, lane: int, group: list[Submission], wide: bool, turn: int) -> Running:
        operation, transport = group[0].operation, self._attendance.transport
        transport.prepare(lane, wide, turn)
        for submission in group:
            if self._attendance.runs_whole:
                submission.operation.take_part(None)
            else:
                submission.operation.take_part(self._attendance.in_use, counts_all=self._is_as_horovod)
        self._common.last.write(operation.kind, self._label(group[0]))
        if timeline := self._common.timeline:
            for submission in group:
                timeline.run(submission.operation.kind, self._label(submission))
        program = operation.fused([s.operation for s in group]) if len(group) > 1 else operation.program(group[0].vote)
        return Running(program, transport, lane, self._common.metrics, group)

    def _complete(self, running: Running) -> None:
        results = running.result if len(running.submissions) > 1 else [running.result]
        self._common.metrics.exchanges += 1
        self._ended(running.submissions)
        with self._lock:
            for submission in running.submissions:
                del self._in_flight[submission.name]
        for submission, result in zip(running.submissions, results, strict=True):
            submission.handle.deliver(result, len(self._attendance.in_use))

    def _ended(self, submissions: Sequence[Submission]) -> None:
        """What these did last is over."""
        if timeline := self._common.timeline:
            for submission in submissions:
                timeline.end(self._label(submission))

    def _label(self, submission: Submission) -> str:
        """What the timeline and reports call it: names are unique in a set only."""
        return submission.name + self.members.where

    # --- trouble ---

    def _look_for_stalls(self) -> None:
        waiting = [(s.name, s.since) for s in self._in_flight.copy().values()]
        error = self._watch.look(waiting, has_joined=self._negotiator.joined)
        if error is not None:
            raise error

    def _fail(self, names: Sequence[str], error: BaseException) -> None:
        for name in list(names):
            with self._lock:
                submission = self._in_flight.pop(name)
            self._ended([submission])
            submission.handle.fail(error)

    def break_down(self, error: HorovodInternalError, cause: BaseException) -> None:
        """The thread has failed: so does everything."""
        with self._lock:
            self._refusal = EngineError(str(error))
            self._refusal.__cause__ = cause
            waiting, self._in_flight = list(self._in_flight.values()), {}
            join, self._join = self._join, None
        for submission in waiting:
            submission.handle.fail(error)
        if join is not None:
            join.fail(error)
