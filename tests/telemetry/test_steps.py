"""Steps are timed without changing what is trained."""

import json

import numpy as np
import pytest
from bucket_worlds import MODEL, on_ranks, step, worlds_of

from hvdlite.buckets import GradientBuckets
from hvdlite.errors import SettingError
from hvdlite.telemetry.steps import BLOCK_STEPS, GRADIENTS, WARM_UP_STEPS, StepRecord, StepTimes, counting, file_of

STEPS = 2 * BLOCK_STEPS


def gradients(rank, number):
    return {p.name: np.random.default_rng([rank, number]).normal(size=p.shape).astype(np.float32) for p in MODEL}


def train(world, rank, seen):
    buckets, results = GradientBuckets(world, "b", MODEL, None), []
    for number in range(WARM_UP_STEPS + STEPS + 2):
        for name, gradient in gradients(rank, number).items():
            buckets.view(name)[...] = gradient
            buckets.mark_ready(name)
        seen.append(buckets.in_flight)
        buckets.finish()
        results.append(np.concatenate([buckets.view(p.name).reshape(-1) for p in MODEL]))
    return results


def test_held_steps_send_nothing_before_the_end_and_every_gradient_is_the_same(thread_world, tmp_path):
    as_always = worlds_of(thread_world, 2)
    plain = on_ranks(2, lambda rank: train(as_always[rank], rank, []))
    worlds, seen = worlds_of(thread_world, 2), [[], []]
    for rank, world in enumerate(worlds):
        world.step_times = StepTimes(str(tmp_path), STEPS, rank)
    measured = on_ranks(2, lambda rank: train(worlds[rank], rank, seen[rank]))
    for before, after in zip(plain, measured, strict=True):
        np.testing.assert_array_equal(before, after)
    before = [True] * (WARM_UP_STEPS + 1)
    assert seen == [[*before, *[False] * BLOCK_STEPS, *[True] * (BLOCK_STEPS + 1)]] * 2

    for rank in range(2):
        found = json.loads(file_of(tmp_path, rank).read_text())
        assert [s["held"] for s in found["steps"]] == [True] * BLOCK_STEPS + [False] * BLOCK_STEPS
        assert found["size"] == 2
        names = [name for name, *_ in found["parameters"]]
        for record in found["steps"]:
            assert list(record["ready"]) == [p.name for p in MODEL]
            assert 0 <= record["ready"][MODEL[-1].name][0] <= record["computed"][0] <= record["ended"][0]
    kept, number = np.fromfile(tmp_path / GRADIENTS, np.float32), WARM_UP_STEPS + 2
    assert any(np.array_equal(kept, np.concatenate([gradients(0, n)[name].reshape(-1) for name in names])) for n in (number - 1, number)), "rank 0's own"


def test_another_optimizer_is_neither_held_back_nor_recorded(thread_world, tmp_path):
    worlds = worlds_of(thread_world, 2)
    for rank, world in enumerate(worlds):
        world.step_times = StepTimes(str(tmp_path), STEPS, rank)

    def both(rank):
        first, second = (GradientBuckets(worlds[rank], name, MODEL, None) for name in ("first", "second"))
        for number in range(WARM_UP_STEPS + STEPS + 1):
            step(first, gradients(rank, number))
            for name, gradient in gradients(rank, number).items():
                second.view(name)[...] = gradient
                second.mark_ready(name)
            assert second.in_flight
            second.finish()
        return worlds[rank].step_times.is_done

    assert on_ranks(2, both) == [True, True]


def test_the_first_step_of_a_block_does_not_count():
    records = [StepRecord(held=number // BLOCK_STEPS % 2 == 0, ready={str(number): (0, 0)}) for number in range(3 * BLOCK_STEPS)]
    held = [int(next(iter(r.ready))) for r in counting(records, held=True)]
    assert held == [n for n in (*range(BLOCK_STEPS), *range(2 * BLOCK_STEPS, 3 * BLOCK_STEPS)) if n % BLOCK_STEPS]


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"measure_folder='.*absent' is no folder"):
        StepTimes(str(tmp_path / "absent"), STEPS, 0)
