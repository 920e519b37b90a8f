"""From what was measured to what the pipeline plays: a step of one compressor at one place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median

from ..telemetry.steps import StepRecord
from ..transports._messages import PIECE_BYTES, PIECES_AHEAD, WIDE_BYTES_PER_SECOND
from ..transports.mpi import LARGE_BYTES
from . import _played
from .costs import TransportCosts, hops, sent_bytes
from .measured import Measured
from .pipeline import Action, Await, Latency, Machine, Outcome, Segment, Send, Wire, Work, simulate
from .place import Place

_MAX_INTERFERENCE = 3.0
_HALVINGS = 8
_NO_EFFECT = 0.01
_SD_PER_MAD = 1.4826
_SOCKET_BYTES = 4e6
"""What the system takes from a process before it waits, at most."""


@dataclass(frozen=True)
class Calibration:
    """What the measured steps with an exchange beside them show, and the parts measured one by one do not."""

    interference: float = 0.0
    """See :class:`~hvdlite.predict.pipeline.Machine`."""
    drag_seconds: float = 0.0
    """A step takes so much longer than the model says: ranks wait for each other, threads for a core."""
    spread: float = 0.0
    """Of measured steps: standard deviation over median."""


@dataclass(frozen=True)
class StepModel:
    """Everything that a step of one compressor needs at one place."""

    measured: Measured
    place: Place
    arm: str
    wire_factor: float = 1.0
    """Of the link's rate; infinity: a network that takes no time."""
    calibration: Calibration = Calibration()

    # --- the machine ---

    @property
    def machine(self) -> Machine:
        """What one rank has here."""
        cores = self.place.cores / self.place.ranks_per_host
        return Machine(cores, self.threads, self.measured.slots, self.wire, self.measured.polling, self.calibration.interference)

    @property
    def threads(self) -> float:
        """Cores that the computation of a rank uses when it has them."""
        used = [s.computed[1] / s.computed[0] for ranks in self.measured.steps(held=True) for s in ranks]
        return max(1.0, median(used))

    @property
    def wire(self) -> Wire:
        """Between this rank's host and the others."""
        if self.place.num_hosts == 1 or self.wire_factor == math.inf:
            return Wire()
        rate = self.measured.network.bytes_per_second(self.measured.cores_per_rank)
        if self.place.link is not None:
            rate = self.place.link.bits_per_second / 8 * self.place.payload_share
        rate *= self.wire_factor
        ahead = PIECES_AHEAD * PIECE_BYTES if rate < WIDE_BYTES_PER_SECOND else _SOCKET_BYTES
        return Wire(rate, self.place.burst_bytes, ahead)

    @property
    def in_pieces(self) -> bool:
        """Whether exchanges go in pieces."""
        return self.place.num_hosts > 1 and self.wire.bytes_per_second < WIDE_BYTES_PER_SECOND

    # --- the exchanges ---

    def programs(self, luck: Luck) -> list[list[Action]]:
        """What the communication thread does for each bucket."""
        programs = self.measured.programs(self.arm, self.place.exchanging, in_pieces=self.in_pieces)
        return [list(self._actions(program, luck)) for program in programs]

    def _actions(self, program: _played.Program, luck: Luck) -> Iterator[Action]:
        share = 1.0 if self.place.num_hosts == 1 else 1 / self.place.ranks_per_host  # ranks of a host take turns in carrying
        for step in program:
            match step:
                case _played.Work(seconds):
                    yield Work(seconds * share * luck.codecs)
                case _played.Request(kind, size):
                    yield from self._request(kind, size, None, luck.requests)
                case _played.Begin(token, kind, size):
                    yield from self._request(kind, size, token, luck.requests)
                case _played.End(token):
                    yield Await(token)

    def _request(self, kind: _played.Kind, size: int, token: int | None, cost_factor: float) -> Iterator[Action]:
        place, cores = self.place, self.measured.cores_per_rank
        if place.num_hosts == 1:
            yield self._send(self._memory, kind, size, place.num_ranks, cores, token, cost_factor)
            return
        if place.ranks_per_host > 1:  # the node's sum before, its copy afterwards
            cpu, _, waiting = self._memory.request("allreduce", size, place.ranks_per_host, cores)
            yield Send(cost_factor * cpu, 0.0, waiting, takes_turns=False)
        send = self._send(self.measured.network, kind, size, place.num_hosts, cores, token, cost_factor)
        yield replace(send, cpu_seconds=send.cpu_seconds / place.ranks_per_host)

    def _send(self, costs: TransportCosts, kind: _played.Kind, size: int, num_ranks: int, cores: float, token: int | None, cost_factor: float) -> Send:
        cpu, wire_bytes, waiting = costs.request(kind, size, num_ranks, cores)
        is_small = size < LARGE_BYTES * (num_ranks if kind == "allreduce" else 1)
        delay = 0.0
        if self.place.link is not None and not costs.is_memory:
            delay = hops(kind, size, num_ranks, is_small) * self.place.link.delay_seconds
        if self.wire_factor == math.inf:
            wire_bytes, delay = 0.0, 0.0
        return Send(cost_factor * cpu, wire_bytes, waiting + delay, takes_turns=not is_small and wire_bytes > 0, token=token)

    @property
    def _memory(self) -> TransportCosts:
        assert self.measured.memory is not None
        return self.measured.memory

    @property
    def codec_seconds(self) -> float:
        """CPU of encoding and decoding all buckets, on one rank."""
        programs = self.measured.programs(self.arm, self.place.exchanging, in_pieces=self.in_pieces)
        return sum(step.seconds for program in programs for step in program if isinstance(step, _played.Work))

    @property
    def wire_bytes(self) -> int:
        """What one rank of an exchange sends to the others, whether by a network or in memory."""
        programs = self.measured.programs(self.arm, self.place.exchanging, in_pieces=self.in_pieces)
        requests = [s for program in programs for s in program if isinstance(s, (_played.Request, _played.Begin))]
        return round(sum(sent_bytes(r.kind, r.nbytes, self.place.exchanging) for r in requests))

    # --- the step ---

    def segments(self, step: Sequence[StepRecord]) -> list[Segment]:
        """The computation of a measured step, as the slowest rank saw it."""
        layout, cores = self.measured.layouts[self.arm], min(self.threads, self.measured.cores_per_rank)
        times = [(*_slowest(step, names), number) for number, names in enumerate(layout)]
        end = (max(s.computed[0] for s in step), fmean(s.computed[1] for s in step), None)
        found, before = [], (0.0, 0.0)
        for wall, cpu, bucket in [*sorted(times, key=lambda t: t[0]), end]:
            cpu = max(cpu, before[1])
            other = max(0.0, wall - before[0] - (cpu - before[1]) / cores)
            found.append(Segment(cpu - before[1], other, bucket))
            before = (wall, cpu)
        return found

    def latencies(self, random: Random | None) -> tuple[Latency, Latency]:
        """Of a round of agreement, and of waking up; drawn from what was measured, or the mean."""
        costs = self.measured.network if self.place.num_hosts > 1 else self._memory
        quiet, busy = costs.rounds, costs.busy_rounds
        base = median(quiet)
        is_crowded = self.machine.cores < self.machine.threads + 1
        link = self.place.link if self.place.num_hosts > 1 else None
        delay = 0.0 if link is None or self.wire_factor == math.inf else link.delay_seconds * math.ceil(math.log2(self.place.num_hosts))

        def drawn(samples: Sequence[float]) -> float:
            return fmean(samples) if random is None else random.choice(samples)

        def round_seconds(computes: bool) -> float:
            own = drawn(busy) if computes and is_crowded else base
            return own * costs.round_factor(self.place.num_hosts) + delay

        def wake_seconds(computes: bool) -> float:
            return max(0.0, drawn(busy) - base) / 2 if computes and is_crowded else 0.0

        return round_seconds, wake_seconds

    def play(self, step: Sequence[StepRecord], luck: Luck | None = None) -> Outcome:
        """One step, of the computation of a measured one; ``luck``: what is not known exactly."""
        luck = luck or Luck()
        programs, segments, latencies = self.programs(luck), self.segments(step), self.latencies(luck.random)
        outcome = simulate(segments, programs, self.machine, *latencies)
        if self.wire.burst_bytes:  # what is left of it after a step, and comes back during the next
            outcome = simulate(segments, programs, self.machine, *latencies, burst_left_bytes=outcome.burst_left_bytes)
        return replace(outcome, step=outcome.step + self.drag_seconds * luck.drag, exposed=outcome.exposed + self.drag_seconds * luck.drag)

    @property
    def drag_seconds(self) -> float:
        """What ranks and threads wait for each other: as measured, where a rank has no more cores than it had then; none where each has its own."""
        has_room = self.machine.cores >= self.machine.threads + 1
        return 0.0 if has_room and self.measured.cores_per_rank < self.threads + 1 else self.calibration.drag_seconds

    def ceiling(self, step: Sequence[StepRecord]) -> Outcome:
        """The step if the exchange took nothing but the agreement on it."""
        return simulate(self.segments(step), [[] for _ in self.measured.layouts[self.arm]], self.machine, *self.latencies(None))

    @property
    def cost_spread(self) -> float:
        """Of what requests take: standard deviation over median."""
        return (self.measured.network if self.place.num_hosts > 1 else self._memory).spread


@dataclass(frozen=True)
class Luck:
    """How far the unknown goes one way in a forecast: factors of the parts, and where single waits are drawn from."""

    requests: float = 1.0
    codecs: float = 1.0
    drag: float = 1.0
    random: Random | None = None


def _slowest(step: Sequence[StepRecord], names: Sequence[str]) -> tuple[float, float]:
    """When the last of these gradients was ready on the last rank, and the CPU it took a rank until then."""
    never = [s.computed for s in step]
    ready = [[s.ready.get(name, s.computed) for name in names] for s in step]
    last = [max(times) if times else end for times, end in zip(ready, never, strict=True)]
    return max(wall for wall, _ in last), fmean(cpu for _, cpu in last)


def place_of(measured: Measured) -> Place:
    """Where the script was measured."""
    hosts = measured.size // measured.ranks[0].local_size
    return Place(measured.size, hosts, measured.cores_per_rank * measured.ranks[0].local_size)


def calibrated(measured: Measured) -> Calibration:
    """Fit to the steps in which buckets left as always: first how much the computation slows down, then what is left of the step."""
    held, free = measured.steps(held=True), measured.steps(held=False)
    if not free:
        return Calibration()
    place, arm = place_of(measured), _baseline(measured)
    computed = median(max(r.computed[0] for r in ranks) for ranks in free)
    ended = [max(r.ended[0] for r in ranks) for ranks in free]

    def played(interference: float) -> list[Outcome]:
        model = StepModel(measured, place, arm, calibration=Calibration(interference))
        return [model.play(step) for step in held]

    low, high = 0.0, _MAX_INTERFERENCE
    slowed = [median(o.computed for o in played(interference)) for interference in (low, high)]
    if slowed[1] - slowed[0] < _NO_EFFECT * slowed[0]:  # the exchange begins when all is computed
        high = low
    for _ in range(_HALVINGS if high else 0):
        middle = (low + high) / 2
        slower = median(o.computed for o in played(middle)) < computed
        low, high = (middle, high) if slower else (low, middle)
    left = median(ended) - median(o.step for o in played(low))
    spread = _SD_PER_MAD * median(abs(e / median(ended) - 1) for e in ended)
    return Calibration(low, max(0.0, left), spread)


def _baseline(measured: Measured) -> str:
    return "none" if "none" in measured.layouts else next(iter(measured.layouts))
