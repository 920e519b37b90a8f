"""The layout of gradients in buckets, and their exchange, alone and between ranks that are threads."""

import logging
import math
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite import compression
from hvdlite.buckets import GradientBuckets, Parameter, plan
from hvdlite.engine import Engine
from hvdlite.errors import MismatchError
from hvdlite.operations import AllReduceOperation, Average, Sum
from hvdlite.settings import Settings
from hvdlite.telemetry.last import LastCollective
from hvdlite.telemetry.metrics import Metrics
from hvdlite.transports.local import LocalTransport
from hvdlite.tuning import Candidate, Tuner
from hvdlite.world import World

PARAMETERS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), max_size=3).map(tuple), st.sampled_from(["float32", "float64", "bfloat16", "float16"]), st.sampled_from([None, None, 0, 1])
    ),
    max_size=25,
).map(lambda rows: [Parameter(f"p{i}", *row) for i, row in enumerate(rows)])


@given(PARAMETERS, st.sampled_from([None, "none", "fp16", "topk", "powersgd"]), st.integers(1, 20_000))
@settings(max_examples=150, deadline=None)
def test_every_parameter_is_in_one_bucket_with_its_like(parameters, spec, bucket_bytes):
    compressor = None if spec is None else compression.load(spec)
    plans = plan(parameters, compressor, bucket_bytes)
    dealt = [p for b in plans for p in b.parameters]
    assert sorted(p.name for p in dealt) == sorted(p.name for p in parameters)
    place = {p.name: i for i, p in enumerate(parameters)}
    for bucket in plans:
        assert bucket.parameters
        assert len({p.dtype for p in bucket.parameters}) == 1
        assert len({p.group for p in bucket.parameters}) == 1
        order = [place[p.name] for p in bucket.parameters]
        assert order == sorted(order)
        accepted = {compressor is None or compressor.accepts(p.shape) for p in bucket.parameters}
        assert len(accepted) == 1
        assert bucket.compressed == (compressor is not None and accepted == {True})
        if accepted == {True} and bucket.parameters[0].group is None:  # never more than the size and one parameter
            assert sum(p.nbytes for p in bucket.parameters[:-1]) < bucket_bytes
    kinds = [(b.parameters[0].dtype, b.parameters[0].group, b.compressed) for b in plans]
    small = [k for k in kinds if k[1] is not None or (compressor is not None and not k[2])]
    assert len(small) == len(set(small))  # what is refused, and every group, is one bucket a dtype


def test_sizes_are_exact():
    assert Parameter("x", (3, 4), "float64").nbytes == 96
    assert Parameter("x", (), "bfloat16").nbytes == 2
    assert Parameter("x", (0, 4), "float32").nbytes == 0


MODEL = [
    Parameter("fc1.weight", (64, 32), "float32"),
    Parameter("fc1.bias", (64,), "float32"),
    Parameter("fc2.weight", (40, 64), "float32"),
    Parameter("fc2.bias", (40,), "float32"),
]
NAMES = [p.name for p in MODEL]


def alone(bucket_bytes: int = 4 << 20) -> World:
    transport, knobs, metrics = LocalTransport(), Settings(bucket_bytes=bucket_bytes), Metrics()
    return World(knobs, transport, Engine(transport, knobs, metrics, LastCollective(None, 0)), metrics)


def worlds_of(thread_world, size: int, **knobs) -> list[World]:
    made = thread_world(size, **knobs)
    return [World(made.settings, t, e, m) for t, e, m in zip(made.transports, made.engines, made.metrics, strict=True)]


def on_ranks(size: int, action) -> list[object]:
    """``action(rank)`` on threads; the results, exceptions included."""
    results: list[object] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = action(rank)
        except Exception as error:  # noqa: BLE001 - handed to the test
            results[rank] = error

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def step(buckets: GradientBuckets, gradients: dict[str, np.ndarray], order=None):
    for name in order or list(gradients):
        buckets.view(name)[...] = gradients[name]
        buckets.mark_ready(name)
    return buckets.finish()


def gradients(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.shape).astype(p.dtype) for p in MODEL}


def test_views_are_the_memory_of_the_bucket():
    buckets = GradientBuckets(alone(), "g", MODEL, None)
    assert len(buckets.plans) == 1
    bases = {id(buckets.view(n).base if buckets.view(n).base is not None else None) for n in NAMES}
    assert len(bases) == 1
    for parameter in MODEL:
        assert buckets.view(parameter.name).shape == parameter.shape
        assert np.shares_memory(buckets.view(parameter.name), buckets.view(parameter.name))
    assert not np.shares_memory(buckets.view("fc1.weight"), buckets.view("fc1.bias"))
    flat = buckets._buckets[0].flat
    assert flat.size == sum(p.num_elements for p in MODEL)
    assert all(np.shares_memory(flat, buckets.view(n)) for n in NAMES)


def test_the_first_layout_is_the_reverse_order():
    buckets = GradientBuckets(alone(bucket_bytes=1), "g", MODEL, None)
    assert [p.name for b in buckets.plans for p in b.parameters] == NAMES[::-1]


def test_after_the_first_step_every_rank_has_rank_zeros_order(thread_world):
    worlds = worlds_of(thread_world, 3, bucket_bytes=1)
    buckets = [GradientBuckets(w, "g", MODEL, None) for w in worlds]
    orders = [[NAMES[1], NAMES[0], NAMES[3], NAMES[2]], NAMES, NAMES[::-1]]
    grads = [gradients(r) for r in range(3)]
    for _ in range(3):
        assert on_ranks(3, lambda rank: step(buckets[rank], grads[rank], orders[rank])) == [frozenset()] * 3
        for name in NAMES:
            expected = sum(g[name] for g in grads) / 3
            for rank in range(3):
                np.testing.assert_allclose(buckets[rank].view(name) if _ else expected, expected, rtol=1e-5, atol=1e-6)
        for b in buckets:
            assert [p.name for bucket in b.plans for p in bucket.parameters] == orders[0]


def test_what_rank_zero_never_saw_keeps_its_place_at_the_end(thread_world):
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    buckets = [GradientBuckets(w, "g", MODEL, None) for w in worlds]
    seen = [["fc2.bias", "fc1.bias"], NAMES]
    grads = gradients(0)
    on_ranks(2, lambda rank: step(buckets[rank], grads, seen[rank]))
    for b in buckets:
        assert [p.name for bucket in b.plans for p in bucket.parameters] == ["fc2.bias", "fc1.bias", "fc2.weight", "fc1.weight"]


def test_missing_gradients_count_as_zero_and_the_absent_everywhere_are_told(thread_world):
    worlds = worlds_of(thread_world, 2)
    buckets = [GradientBuckets(w, "g", MODEL, None, op=Sum) for w in worlds]
    for b in buckets:  # remains of an earlier step must not be sent
        for name in NAMES:
            b.view(name)[...] = 99
    grads = gradients(0)
    seen = [["fc1.weight", "fc2.weight"], ["fc1.weight", "fc1.bias"]]
    assert on_ranks(2, lambda rank: step(buckets[rank], grads, seen[rank])) == [frozenset({"fc2.bias"})] * 2
    views = [{n: b.view(n) for n in NAMES} for b in buckets]  # where the gradients lie now; the layout has changed
    for rank in range(2):
        np.testing.assert_allclose(views[rank]["fc1.weight"], 2 * grads["fc1.weight"], rtol=1e-6)
        np.testing.assert_array_equal(views[rank]["fc2.weight"], grads["fc2.weight"])
        np.testing.assert_array_equal(views[rank]["fc1.bias"], grads["fc1.bias"])
        assert not views[rank]["fc2.bias"].any()


def test_a_full_bucket_goes_out_before_finish(thread_world):
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    buckets = [GradientBuckets(w, "g", MODEL, None) for w in worlds]
    assert not buckets[0].in_flight
    for b in buckets:
        b.view("fc2.bias")[...] = 1
        b.mark_ready("fc2.bias")
        assert b.in_flight
    assert buckets[0]._bucket_of["fc2.bias"].handle._event.wait(20)
    on_ranks(2, lambda rank: buckets[rank].finish())
    assert not buckets[0].in_flight


@pytest.mark.parametrize("spec", ["topk:density=0.25", "powersgd:rank=1"])
def test_a_residual_follows_its_parameter_to_another_bucket(spec):
    """Two steps with a re-layout between equal two steps of buckets that had the final layout from the start, where the layout is no matter."""
    world = alone(bucket_bytes=1)  # every matrix alone in its bucket: the layout changes only their order
    moved = compression.load(spec)
    buckets = GradientBuckets(world, "g", MODEL, moved)
    step(buckets, gradients(0), NAMES)
    before = {n: q["residual"].copy() for n, q in moved.state_dict().items() if "residual" in q}
    assert [p.name for b in buckets.plans for p in b.parameters if b.compressed] == ["fc1.weight", "fc2.weight"]
    after = {n: q["residual"] for n, q in moved.state_dict().items() if "residual" in q}
    assert before.keys() == {"fc1.weight", "fc2.weight"}
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
        assert before[name].any()
    step(buckets, gradients(1), NAMES)

    still = compression.load(spec)
    same = GradientBuckets(alone(bucket_bytes=1), "g", MODEL, still)
    same._observed = None  # keeps its first layout
    for seed in (0, 1):
        step(same, gradients(seed), NAMES)
    for name in NAMES:
        np.testing.assert_array_equal(buckets.view(name), same.view(name))


def test_dense_bytes_are_what_the_gradients_would_have_taken(thread_world):
    worlds = worlds_of(thread_world, 2)
    buckets = [GradientBuckets(w, "g", MODEL, compression.load("fp16")) for w in worlds]
    on_ranks(2, lambda rank: step(buckets[rank], gradients(rank)))
    total = 4 * sum(p.num_elements for p in MODEL)
    assert worlds[0].metrics.dense_bytes == total
    assert worlds[0].metrics.wire_bytes == pytest.approx(total / 2, rel=0.05)
    assert worlds[0].metrics.exposed_ms > 0


def test_a_failed_step_is_told_once_and_the_next_one_starts_afresh(thread_world):
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    other = [*MODEL[:-1], Parameter("fc2.bias", (41,), "float32")]
    buckets = [GradientBuckets(w, "g", m, None) for w, m in zip(worlds, (MODEL, other), strict=True)]
    for _ in range(2):
        failures = on_ranks(2, lambda rank: step(buckets[rank], {n: buckets[rank].view(n).copy() for n in NAMES}))
        assert [type(f) for f in failures] == [MismatchError] * 2
        assert "'fc2.bias' has shape (40,) on rank 0 but (41,) on rank 1" in str(failures[0])
        assert not any(b.in_flight for b in buckets)


@dataclass
class Counted(compression.Compressor):
    """Averages, and can ask for another treatment of the next exchange, as error feedback does when it flushes."""

    flushing: bool = False

    def exchange(self, bucket):
        mean = yield compression.AllReduce(bucket.flat.copy())
        return mean / bucket.num_ranks, compression.Dense(lambda: bucket.flat)

    def wire_bytes(self, shapes, num_ranks):
        return 4 * sum(map(math.prod, shapes))

    @property
    def signature(self):
        return "counted (flushing)" if self.flushing else "counted"


def test_every_compressed_bucket_announces_a_changed_signature(thread_world):
    """One rank alone flushes: not one of its buckets may be exchanged with a bucket that is not flushed."""
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    compressors = [Counted(), Counted()]
    buckets = [GradientBuckets(w, "g", MODEL, c) for w, c in zip(worlds, compressors, strict=True)]
    for b in buckets:
        b._observed = None
    for _ in range(2):
        assert on_ranks(2, lambda rank: step(buckets[rank], gradients(rank))) == [frozenset()] * 2
    compressors[1].flushing = True
    for rank in range(2):
        for name in NAMES:
            buckets[rank].view(name)[...] = 1
            buckets[rank].mark_ready(name)
    handles = {b.name: b.handle for b in buckets[1]._buckets}
    compressed = {b.name for b in buckets[1]._buckets if b.plan.compressed}
    on_ranks(2, lambda rank: buckets[rank].finish())
    assert len(compressed) == 2
    for name, handle in handles.items():
        assert isinstance(handle._error, MismatchError) == (name in compressed), name


# --- what is chosen by measurement ---

LAYERS = [Parameter(f"layer{i}.{kind}", shape, "float32") for i in range(6) for kind, shape in (("weight", (40, 30 + i)), ("bias", (40,)))]
SIZES = (3000, 9000, 100_000)
DEFAULT_BYTES = 9000
ENOUGH_STEPS = 62


@pytest.fixture
def tune(monkeypatch):
    """Makes small buckets the candidates, and steps take what ``seconds(candidate)`` says, times ``factor(candidate, number of the tuner)``.

    Gives what was in use, a line a step and rank; ``unknown`` collects those of which nothing is known.
    """

    def tune(seconds, factor=lambda candidate, number: 1.0, unknown=None) -> list[Candidate]:
        used: list[Candidate] = []
        made: list[Tuner] = []

        class Told(Tuner):
            def step(self, measured: float | None) -> bool:
                assert measured is None or measured > 0
                used.append(self.current)
                if self not in made:
                    made.append(self)
                if measured is None and unknown is not None:
                    unknown.append(self.current)
                return super().step(None if measured is None else seconds(self.current) * factor(self.current, made.index(self)))

        for name, value in (("BUCKET_BYTES", SIZES), ("DEFAULT_BUCKET_BYTES", DEFAULT_BYTES), ("Tuner", Told)):
            monkeypatch.setattr(f"hvdlite.buckets.{name}", value)
        return used

    return tune


def layers(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.shape).astype(p.dtype) for p in LAYERS}


def trained(worlds: list[World], spec: str | None, steps: int = ENOUGH_STEPS, name: str = "g", action=lambda rank, step: None):
    """Buckets of all ranks, and what each rank had as gradients after each step."""
    compressors = [None if spec is None else compression.load(spec) for _ in worlds]
    buckets = [GradientBuckets(w, name, LAYERS, c) for w, c in zip(worlds, compressors, strict=True)]

    def train(rank: int) -> list[dict[str, bytes]]:
        seen = []
        for number in range(steps):
            step(buckets[rank], layers(100 * number + rank))
            seen.append({p.name: buckets[rank].view(p.name).tobytes() for p in LAYERS})
            action(rank, number)
        return seen

    return buckets, on_ranks(len(worlds), train)


def sums_in_order(worlds: list[World]) -> list[World]:
    """The transport of these tests adds up in the order of ranks, as the memory of one machine does."""
    for world in worlds:
        world.transport.holds = lambda array: True  # type: ignore[method-assign]
    return worlds


@pytest.mark.parametrize("spec", [None, "none", "powersgd:rank=2", "powersgd:feedback=false"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("best", [Candidate(3000, 2), Candidate(100_000, 4)])
def test_the_fastest_setting_is_chosen_and_changes_no_bit(thread_world, tune, spec, size, best):
    used = tune(lambda candidate: 0.8 if candidate == best else 1.0)
    worlds = sums_in_order(worlds_of(thread_world, size))
    buckets, seen = trained(worlds, spec)
    fixed, expected = trained(worlds_of(thread_world, size, bucket_bytes=DEFAULT_BYTES, slots_in_use=4), spec)
    assert seen == expected
    assert len({str(s) for s in seen}) == 1
    assert len({c.bucket_bytes for c in used}) == 3
    for rank in range(size):
        assert buckets[rank].plans == plan(list(buckets[rank]._parameters.values()), buckets[rank].compressor, best.bucket_bytes)
        assert (worlds[rank].metrics.bucket_bytes, worlds[rank].metrics.slots) == (best.bucket_bytes, best.num_slots)
        assert buckets[rank].order == fixed[rank].order
        assert buckets[rank]._tuner is None


def test_the_slowest_rank_decides_for_all(thread_world, tune):
    """What one rank finds fastest holds up another one; all choose what is good for both."""
    tune(lambda candidate: 0.9 if candidate == Candidate(3000, 4) else 1.0, lambda candidate, number: 1.2 - number if candidate == Candidate(3000, 2) else 1.0)
    worlds = worlds_of(thread_world, 2)
    buckets, seen = trained(worlds, None)
    assert [b._in_use for b in buckets] == [Candidate(3000, 4)] * 2
    assert seen[0] == seen[1]


def test_a_residual_survives_all_that_is_tried(thread_world, tune):
    """What was delivered and what is owed is all there was."""
    tune(lambda candidate: 0.5 if candidate.bucket_bytes == 3000 else 1.0)
    worlds = worlds_of(thread_world, 2)
    buckets, seen = trained(worlds, "powersgd:rank=1")
    assert worlds[0].metrics.bucket_bytes == 3000
    owed = [b.compressor.state_dict() for b in buckets]
    for p in LAYERS:
        true = sum(np.mean([layers(100 * number + rank)[p.name] for rank in range(2)], 0, np.float64) for number in range(ENOUGH_STEPS))
        delivered = sum(np.frombuffer(step[p.name], np.float32).reshape(p.shape).astype(np.float64) for step in seen[0])
        if p.name.endswith("weight"):
            assert owed[0][p.name]["residual"].any()
            delivered = delivered + np.mean([o[p.name]["residual"] for o in owed], 0)
        np.testing.assert_allclose(delivered, true, atol=1e-3)


@pytest.mark.parametrize(("size", "spec"), [(2, "topk:density=0.1"), (2, "int8"), (3, None), (4, "powersgd:rank=2")])
def test_buckets_stay_where_their_size_would_change_the_result_and_slots_are_tuned(thread_world, tune, size, spec):
    used = tune(lambda candidate: 1.0 / candidate.num_slots)
    worlds = worlds_of(thread_world, size, slots=3)
    _, seen = trained(worlds, spec)
    assert set(used) == {Candidate(DEFAULT_BYTES, 2), Candidate(DEFAULT_BYTES, 3)}
    _, expected = trained(worlds_of(thread_world, size, bucket_bytes=DEFAULT_BYTES, slots_in_use=2), spec)
    assert seen == expected


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({"bucket_bytes": 5000}, {Candidate(5000, 2), Candidate(5000, 4)}),
        ({"slots_in_use": 3}, {Candidate(size, 3) for size in SIZES}),
        ({"bucket_bytes": 5000, "slots_in_use": 4}, set()),
        ({"bucket_bytes": 100_000}, set()),  # one bucket uses one slot
        ({"slots": 1}, {Candidate(size, 1) for size in SIZES}),
    ],
)
def test_what_the_user_set_is_not_tuned(thread_world, tune, knobs, expected):
    used = tune(lambda candidate: 1.0 / candidate.bucket_bytes)
    worlds = worlds_of(thread_world, 2, **knobs)
    trained(worlds, None)
    assert set(used) == expected
    if not expected:  # nothing but buckets, and the order of the first step
        assert worlds[0].metrics.exchanges == ENOUGH_STEPS * len(plan(LAYERS, None, knobs["bucket_bytes"])) + 1


def test_a_small_model_and_a_world_of_one_tune_nothing(thread_world, tune):
    used = tune(lambda candidate: 1.0)
    worlds = worlds_of(thread_world, 2)
    buckets = [GradientBuckets(w, "g", MODEL[1:2] + MODEL[3:], None) for w in worlds]
    for _ in range(3):
        on_ranks(2, lambda rank: step(buckets[rank], {n: np.ones(buckets[rank].view(n).shape, np.float32) for n in ("fc1.bias", "fc2.bias")}))
    assert worlds[0].metrics.exchanges == 3 + 1
    single = GradientBuckets(alone(0), "g", LAYERS, None)
    for _ in range(3):
        step(single, layers(0))
    assert single._step_began is None
    assert not used


def test_a_failed_step_is_not_measured_and_counts_on_no_rank(thread_world, tune):
    unknown: list[Candidate] = []
    used = tune(lambda candidate: 0.5 if candidate.bucket_bytes == 3000 else 1.0, unknown=unknown)
    worlds = worlds_of(thread_world, 2)
    compressors = [Counted(), Counted()]
    buckets = [GradientBuckets(w, "g", LAYERS, c) for w, c in zip(worlds, compressors, strict=True)]
    failed = 0
    for number in range(40):
        compressors[1].flushing = number % 10 == 3
        before = len(used)
        found = on_ranks(2, lambda rank: step(buckets[rank], layers(rank)))
        if [type(f) for f in found] == [MismatchError] * 2:
            failed += 1
            assert len(used) == before
        assert buckets[0]._in_use == buckets[1]._in_use
    assert failed == 4
    assert len(unknown) == 2 * 4  # the step after it: nobody knows when it began
    assert set(used) == {Candidate(DEFAULT_BYTES, 2), Candidate(DEFAULT_BYTES, 4)}  # it makes no promise, so its buckets stay
    assert buckets[0]._tuner is None


def test_several_optimizers_and_other_collectives_go_on_while_slots_change(thread_world, tune):
    """Each user is a thread of its own on every rank. One optimizer chooses the slots; every result is that of a quiet run."""
    used = tune(lambda candidate: 1.0 / candidate.bucket_bytes / candidate.num_slots)
    size = 3
    worlds = sums_in_order(worlds_of(thread_world, size, delay=lambda rank, lane: 0.0005 * ((rank + lane) % 2)))
    expected = trained(worlds_of(thread_world, size, bucket_bytes=DEFAULT_BYTES, slots_in_use=4), "powersgd:rank=2")[1]
    sums: list[list[float]] = [[] for _ in range(size)]

    def collect(rank: int) -> None:
        for number in range(200):
            array = np.full(5 + number % 3, rank + number, np.float64)
            worlds[rank].engine.submit(AllReduceOperation(f"named.{number}", [array], Average, size, rank)).wait()
            sums[rank].append(array[0])

    results: dict[str, object] = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: trained(worlds, "powersgd:rank=2", name=n)[1]}), daemon=True) for n in ("g", "h")]
    threads.append(threading.Thread(target=lambda: on_ranks(size, collect), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert results["g"] == expected
    assert results["h"] == expected
    assert sums == [[number + 1.0 for number in range(200)]] * size
    assert len({w.metrics.slots for w in worlds}) == 1
    assert {c.num_slots for c in used} == {2, 4}


def test_rank_zero_says_once_what_was_chosen(thread_world, tune, caplog, monkeypatch):
    tune(lambda candidate: 0.016 if candidate == Candidate(3000, 2) else 0.02)
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("INFO", "hvdlite"):
        trained(worlds_of(thread_world, 2), None)
    said = "bucket_bytes=3000, 2 slots in use: 16.0 ms a step (default 20.0); fix it with HVDLITE_BUCKET_BYTES=3000 HVDLITE_SLOTS_IN_USE=2"
    assert [r.getMessage() for r in caplog.records] == [said]
