"""Sizes of buckets and slots chosen by measurement: what is chosen changes no bit, and every rank chooses the same."""

import logging
import threading

import numpy as np
import pytest
from bucket_worlds import MODEL, Counted, alone, on_ranks, step, worlds_of

from hvdlite import compression
from hvdlite.buckets import GradientBuckets, Parameter, plan
from hvdlite.errors import MismatchError
from hvdlite.operations import AllReduceOperation, Average
from hvdlite.tuning import Candidate, Tuner
from hvdlite.world import World

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
