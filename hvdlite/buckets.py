"""Gradients travel in static buckets: which parameters go together, their memory, and when a bucket is sent.

A parameter's gradient is copied once, into its bucket, and from then on *is* a view of it. The layout is reverse order at first (the
backward pass starts at the end), and from the second step on the order in which rank 0 really saw the gradients become ready. A full
bucket is one submission: few names to negotiate, a composition that never varies (so top-k and error feedback are reproducible), and the
wire starts while the backward pass goes on.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from .arrays import Array, numpy_dtype, ops
from .compression import Compressor
from .errors import HorovodInternalError
from .operations import Adasum, AllGatherOperation, AllReduceOperation, Average, Carrier, Max, ReduceOp, Sum
from .orders import UseSlots
from .residuals import ResidualWatch
from .settings import env_name
from .shadow import Shadow
from .submissions import Handle
from .telemetry.steps import StepTimes
from .tuning import BUCKET_BYTES, DEFAULT_BUCKET_BYTES, SLOTS, Candidate, Decision, Tuner, candidates
from .world import World

LOG = logging.getLogger("hvdlite")


@dataclass(frozen=True)
class Parameter:
    """What the layout must know of a parameter.

    ``group``: parameters of one group share a bucket of their own. ``carrier``: the local rank that takes it across the nodes, when it is
    compressed and nodes make a difference. It never changes, since what the compressor remembers lies on that rank.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int | None = None
    carrier: int | None = None

    @property
    def num_elements(self) -> int:
        """Entries of the parameter."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its gradient."""
        return self.num_elements * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class BucketPlan:
    """Parameters that travel together, and whether they are compressed."""

    parameters: tuple[Parameter, ...]
    compressed: bool


def plan(parameters: Sequence[Parameter], compressor: Compressor | None, bucket_bytes: int) -> list[BucketPlan]:
    """Deal parameters, in the order of readiness, to buckets of about ``bucket_bytes``.

    What the compressor does not accept (1-D and tiny tensors) goes dense into one bucket a dtype, whatever its size: a message more
    costs more than the bytes.
    """
    closed: list[BucketPlan] = []
    open_buckets: dict[tuple[object, ...], list[Parameter]] = {}
    filled: Counter[tuple[object, ...]] = Counter()  # bytes
    for parameter in parameters:
        accepted = compressor is None or compressor.accepts(parameter.shape)
        key = (parameter.dtype, accepted, parameter.group, parameter.carrier if accepted else None)
        open_buckets.setdefault(key, []).append(parameter)
        filled[key] += parameter.nbytes
        if accepted and parameter.group is None and filled[key] >= bucket_bytes:
            del filled[key]
            closed.append(BucketPlan(tuple(open_buckets.pop(key)), compressor is not None))
    rest = [BucketPlan(tuple(members), compressor is not None and bool(key[1])) for key, members in open_buckets.items()]
    return closed + rest


@dataclass
class _Bucket:
    name: str
    plan: BucketPlan
    flat: Array
    views: dict[str, Array]
    ready: set[str] = field(default_factory=set)
    all_finite: bool | None = True
    """Of the gradients that are ready; None: not known."""
    handle: Handle | None = None
    operation: AllReduceOperation | None = None
    signature: str = ""
    """The compressor's, when the operation was made."""

    @property
    def missing(self) -> set[str]:
        return self.views.keys() - self.ready


class GradientBuckets:
    """The gradients of one optimizer, and their exchange among the ranks of ``process_set``, or all."""

    def __init__(
        self,
        world: World,
        name: str,
        parameters: Sequence[Parameter],
        compressor: Compressor | None,
        *,
        op: ReduceOp = Average,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: Any = None,
    ):
        self._world, self._name = world, name
        self._channel = world.channel(process_set)
        self._transport, self._topology = self._channel.transport, self._channel.topology
        self.compressor, self._op, self._prescale, self._postscale = compressor, op, prescale, postscale
        self._lock = threading.Lock()
        self._observed: list[str] | None = []  # the order of readiness in the first step; None once it is used
        if compressor is not None and not compressor.any_dtype and self._transport.num_carriers and op is not Adasum:
            parameters = _shared_out(parameters, compressor, self._transport.num_carriers)
        self._parameters = {p.name: p for p in reversed(parameters)}
        self._in_use = Candidate(world.settings.bucket_bytes or DEFAULT_BUCKET_BYTES, world.settings.slots_in_use or world.settings.slots)
        self._tuner: Tuner | None = None
        self._num_steps, self._wants_tuner = 0, True
        self._num_joins = self._channel.num_joins  # when it was last made sure that ranks lie alike
        self._shadow = Shadow.beside(world, self._channel, name, compressor, op)
        self._residuals = ResidualWatch(world, name)
        self._step_began: float | None = None  # None: unknown, or of no interest
        self._memory = self._transport.allocate(sum(_padded(p.nbytes) for p in parameters), "uint8")
        self._lay_out()

    def view(self, name: str) -> Array:
        """The memory of a parameter's gradient, in its shape."""
        return self._bucket_of[name].views[name]

    @property
    def in_flight(self) -> bool:
        """Whether something was submitted and :meth:`finish` was not called."""
        return any(b.handle is not None for b in self._buckets)

    @property
    def order(self) -> list[str]:
        """The parameters as they lie in the buckets; empty until that is final."""
        return list(self._parameters) if self._observed is None else []

    @property
    def plans(self) -> list[BucketPlan]:
        """The layout."""
        return [b.plan for b in self._buckets]

    def lay_out_as(self, order: Sequence[str]) -> None:
        """Lie as in an earlier run, and stay so. Every rank passes the same order, before the first step."""
        self._observed = None
        self._reorder(order)

    def rejoin(self) -> bool:
        """Before a step's first gradient. Where ranks have joined since the last one, all that step now follow the one that has taken the most steps;
        whether this was so: then views may have changed."""
        if self._num_joins == self._channel.num_joins:
            return False
        self._num_joins = self._channel.num_joins
        names = sorted(self._parameters)
        place = {name: i for i, name in enumerate(names)}
        wants_tuner = self._wants_tuner or self._tuner is not None
        how = [self._observed is None, wants_tuner, self._in_use.bucket_bytes]
        mine = [self._num_steps, -self._topology.rank, *how, *(place[name] for name in self._parameters)]
        gathered, _ = self._channel.submit(AllGatherOperation(f"{self._name}.rejoin", np.array([mine], np.int64), self._topology.size)).wait()
        everyone: list[list[int]] = gathered.tolist()
        if all(theirs[:1] + theirs[2:] == mine[:1] + mine[2:] for theirs in everyone):
            return True
        self._num_steps, _, is_ordered, self._wants_tuner, bucket_bytes, *permutation = max(everyone)  # type: ignore[assignment]
        self._observed = None if is_ordered else []
        self._tuner = None
        self._in_use = replace(self._in_use, bucket_bytes=bucket_bytes)
        self._lay_out_anew([names[i] for i in permutation])
        return True

    def hand_over(self, name: str, gradient: Array) -> None:
        """Copy a gradient into its view, and mark it ready."""
        self._rejoin_at_beginning()
        view = self.view(name)
        self.mark_ready(name, ops(view).copy_checked(gradient, view))

    def mark_ready(self, name: str, finite: bool | None = None) -> None:
        """The gradient of ``name`` lies in its view; a bucket that is full now goes out. ``finite``: whether it is, when somebody has looked."""
        self._rejoin_at_beginning()
        with self._lock:
            bucket = self._bucket_of[name]
            bucket.ready.add(name)
            bucket.all_finite = None if finite is None or bucket.all_finite is None else bucket.all_finite and finite
            if self._observed is not None:
                self._observed.append(name)
            full = len(bucket.ready) == len(bucket.plan.parameters)
        times = self._world.step_times
        if times is not None:
            times.ready(self, name)
        if full and not (times is not None and times.holds_back(self)):
            self._submit(bucket)

    def finish(self) -> frozenset[str]:
        """Send what is not full, with zeros where this rank has no gradient, and wait for all.

        Returns:
            The parameters for which no rank had a gradient.
        Raises:
            HorovodInternalError: the first failure, after all buckets came to an end; the next step starts afresh.
        """
        self._rejoin_at_beginning()
        if self._world.step_times is not None:
            self._computed(self._world.step_times)
        for bucket in self._buckets:
            if bucket.handle is None:
                for name in bucket.missing:
                    bucket.views[name][...] = 0
                self._submit(bucket)
        absent: frozenset[str] = frozenset()
        failures: list[HorovodInternalError] = []
        all_here = True
        with self._world.metrics.exposed():
            for bucket in self._buckets:
                assert bucket.handle is not None
                try:
                    absent |= bucket.handle.wait()
                    all_here &= bucket.handle.num_ranks == self._topology.size
                except HorovodInternalError as failure:
                    failures.append(failure)
        for bucket in self._buckets:
            bucket.handle = None
            bucket.ready.clear()
            bucket.all_finite = True
        if failures:
            self._step_began = None
            raise failures[0]
        if self._shadow is not None:
            unit = self._prescale * self._postscale * (self._topology.size if self._op is Sum else 1)
            self._shadow.compare([(b.name, b.flat, _layout(b.plan)) for b in self._buckets], unit)
        noted = [p.name for b in self._buckets if b.plan.compressed and self._is_encoded_here(b) for p in b.plan.parameters]
        self._residuals.step(self._active, noted)
        self._num_steps += 1
        if self._observed is not None:
            self._adopt_order(self._observed)
            self._observed = None
        if self._num_steps == self._world.settings.compress_after_steps and self.compressor is not None:
            self._lay_out_anew(list(self._parameters))
        self._measure(all_here=all_here)
        if self._world.step_times is not None:
            self._world.step_times.ended(self, self._about())
        return absent

    def _computed(self, times: StepTimes) -> None:
        """The backward pass has ended."""
        times.computed(self)
        if times.wants_gradients(self):
            times.keep_gradients([self.view(name) for name in self._parameters])

    def _about(self) -> dict[str, Any]:
        """What a forecast must know of the gradients: the parameters in the order in which they lie, and where they travel."""
        parameters = [(p.name, p.shape, p.dtype, p.group) for p in self._parameters.values()]
        topology = self._world.topology
        return {"parameters": parameters, "size": topology.size, "local_size": topology.local_size, "bucket_bytes": self._in_use.bucket_bytes}

    def _rejoin_at_beginning(self) -> None:
        if self._num_joins != self._channel.num_joins and not any(b.ready or b.handle for b in self._buckets):
            self.rejoin()

    @property
    def _active(self) -> Compressor | None:
        """The compressor, if the steps without one are over."""
        return self.compressor if self._num_steps >= self._world.settings.compress_after_steps else None

    def _is_encoded_here(self, bucket: _Bucket) -> bool:
        carrier = self._carrier_of(bucket)
        return carrier is None or carrier.is_here

    def _submit(self, bucket: _Bucket) -> None:
        compressor = self._active if bucket.plan.compressed else None
        signature = "" if compressor is None else compressor.signature
        if bucket.operation is None or bucket.signature != signature:
            bucket.signature = signature
            layout = _layout(bucket.plan)
            topology = self._topology
            bucket.operation = AllReduceOperation(
                bucket.name, [bucket.flat], self._op, topology.size, topology.rank, self._prescale, self._postscale, compressor, layout, resident=True,
                carrier=self._carrier_of(bucket),
            )  # fmt: skip
        if self._shadow is not None:
            self._shadow.remember(bucket.name, bucket.flat)
        elif compressor is not None and self._is_encoded_here(bucket):
            self._residuals.note(bucket.name, bucket.flat)
        bucket.operation.missing = bucket.missing
        bucket.operation.all_finite = bucket.all_finite
        size = self._topology.size
        self._world.metrics.dense_bytes += round(2 * (size - 1) / size * bucket.flat.nbytes)
        bucket.handle = self._channel.submit(bucket.operation)

    def _carrier_of(self, bucket: _Bucket) -> Carrier | None:
        chosen, topology = bucket.plan.parameters[0].carrier, self._topology
        if chosen is None or not bucket.plan.compressed or not self._transport.holds(bucket.flat):
            return None
        return Carrier(chosen, topology.local_rank == chosen, topology.cross_rank, self._transport.num_nodes)

    def _lay_out(self) -> None:
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[str, _Bucket] = {}
        start = 0
        for number, bucket_plan in enumerate(self._plan(self._in_use.bucket_bytes)):
            size = sum(p.nbytes for p in bucket_plan.parameters)
            flat = self._memory[start : start + size].view(numpy_dtype(bucket_plan.parameters[0].dtype))
            start += _padded(size)
            bucket = _Bucket(f"{self._name}.bucket.{number}", bucket_plan, flat, _views(flat, bucket_plan.parameters))
            self._buckets.append(bucket)
            self._bucket_of |= dict.fromkeys(bucket.views, bucket)
        self._world.metrics.bucket_bytes = self._in_use.bucket_bytes

    def _plan(self, bucket_bytes: int) -> list[BucketPlan]:
        if self._active is None:  # as in a run without a compressor, whose bits may depend on what travels together
            return plan([replace(p, carrier=None) for p in self._parameters.values()], None, bucket_bytes)
        return plan(list(self._parameters.values()), self.compressor, bucket_bytes)

    def _adopt_order(self, observed: Iterable[str]) -> None:
        """Lay out anew in the order of the first rank that takes part; what never became ready there keeps its place at the end."""
        names = list(self._parameters)
        place = {name: i for i, name in enumerate(names)}
        order = list(dict.fromkeys([*observed, *names]))
        permutation = np.array([place[name] for name in order], np.int64)
        everyones, _ = self._channel.submit(AllGatherOperation(f"{self._name}.order", permutation, self._topology.size)).wait()
        self._reorder([names[i] for i in everyones[: len(names)]])

    def _reorder(self, order: Sequence[str]) -> None:
        """Lie in this order."""
        if list(order) != list(self._parameters):
            self._lay_out_anew(order)

    def _lay_out_anew(self, order: Sequence[str]) -> None:
        """In the same memory; gradients keep their values."""
        gradients = {name: self.view(name).copy() for name in order}
        self._parameters = {name: self._parameters[name] for name in order}
        self._lay_out()
        for name, gradient in gradients.items():
            self.view(name)[...] = gradient

    # --- what is chosen by measurement; every rank comes here after the same steps ---

    def _measure(self, *, all_here: bool) -> None:
        """A step has ended well: tell the tuner what it took, from the end of the last one on, and follow it. Without some ranks, nothing is tried."""
        self._world.metrics.stepped()
        if self._active is None and self.compressor is not None:
            return
        if not all_here:
            self._wants_tuner |= self._tuner is not None
            self._tuner = None
        elif self._wants_tuner:
            self._wants_tuner = False
            self._tuner = self._make_tuner()
        elif self._tuner is not None and self._tuner.step(None if self._step_began is None else perf_counter() - self._step_began):
            self._follow(self._tuner)
        self._step_began = None if self._tuner is None else perf_counter()

    def _make_tuner(self) -> Tuner | None:
        """None where there is nothing to choose."""
        knobs, default = self._world.settings, self._in_use
        if self._topology.size == 1:
            return None
        sizes = BUCKET_BYTES if not knobs.bucket_bytes and self._may_deal_anew else (default.bucket_bytes,)
        slots = [default.num_slots] if knobs.slots_in_use else [knobs.slots, *(s for s in SLOTS if s < knobs.slots)]
        found = candidates(default, sizes, slots, self._plan)
        if len({c.num_slots for c in found}) > 1 and not self._ask_for_slots(default.num_slots):  # another optimizer chooses them
            found = candidates(default, sizes, [default.num_slots], self._plan)
        return Tuner(found) if len(found) > 1 else None

    @property
    def _may_deal_anew(self) -> bool:
        """Whether gradients are the same, bit for bit, in whatever buckets they travel: they must not depend on the time something took.

        Two ranks add up in one way only, and so does the memory of one machine. MPI adds up messages of other sizes in another order, and Adasum adds
        up its products over other shares.
        """
        in_order = self._topology.size == 2 or (self._transport.holds(self._memory) and not self._transport.num_carriers)
        return self._op is not Adasum and in_order and not (self.compressor is not None and self.compressor.depends_on_bucket)

    def _follow(self, tuner: Tuner) -> None:
        if tuner.is_through:
            seconds, topology = np.array(tuner.medians()), self._topology
            self._channel.submit(AllReduceOperation(f"{self._name}.step_seconds", [seconds], Max, topology.size, topology.rank)).wait()
            tuner.conclude(seconds.tolist())
        before, self._in_use = self._in_use, tuner.current
        if self._in_use.num_slots != before.num_slots and not self._ask_for_slots(self._in_use.num_slots):  # a rank has joined meanwhile
            self._in_use, self._tuner, self._wants_tuner = before, None, True
            return
        if self._in_use.bucket_bytes != before.bucket_bytes:
            self._lay_out_anew(list(self._parameters))
        if tuner.decision is not None:
            self._tuner = None
            if self._topology.rank == 0:
                LOG.info(_in_words(tuner.decision))

    def _ask_for_slots(self, num_slots: int) -> bool:
        """Have so many in use from now on; whether it is this optimizer that chooses."""
        return bool(self._channel.submit(UseSlots(f"{self._name}.slots", num_slots)).wait())


def _in_words(decision: Decision) -> str:
    size, slots = decision.chosen.bucket_bytes, decision.chosen.num_slots
    return (
        f"bucket_bytes={size}, {slots} slots in use: {decision.seconds * 1e3:.1f} ms a step (default {decision.default_seconds * 1e3:.1f}); "
        f"fix it with {env_name('bucket_bytes')}={size} {env_name('slots_in_use')}={slots}"
    )


def _shared_out(parameters: Sequence[Parameter], compressor: Compressor, num_carriers: int) -> list[Parameter]:
    """Deal parameters to the carriers, each to the one with the fewest bytes so far, those of a group together; the others stay as they are."""
    load = [0] * num_carriers
    of_group: dict[int, int] = {}
    dealt = []
    for p in parameters:
        if not compressor.accepts(p.shape) or p.dtype != "float32":
            dealt.append(p)
            continue
        carrier = load.index(min(load)) if p.group is None else of_group.setdefault(p.group, load.index(min(load)))
        load[carrier] += p.nbytes
        dealt.append(replace(p, carrier=carrier))
    return dealt


def _layout(bucket_plan: BucketPlan) -> list[tuple[str, tuple[int, ...]]]:
    return [(p.name, p.shape) for p in bucket_plan.parameters]


def _padded(num_bytes: int) -> int:
    """Buckets begin on cache lines."""
    return -(-num_bytes // 64) * 64


def _views(flat: Array, parameters: Sequence[Parameter]) -> dict[str, Array]:
    views, start = {}, 0
    for parameter in parameters:
        stop = start + parameter.num_elements
        views[parameter.name] = flat[start:stop].reshape(parameter.shape)
        start = stop
    return views
