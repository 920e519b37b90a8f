"""Compressors played beside exact gradients: what they are said to do is what they would have done, and the training does not notice."""

import json

import numpy as np
import pytest
from bucket_worlds import MODEL, on_ranks, step, worlds_of

from hvdlite import compression
from hvdlite.buckets import GradientBuckets
from hvdlite.errors import SettingError
from hvdlite.operations import Sum
from hvdlite.telemetry.reports import Reports

ARMS = ["fp16", "int8", "sign", "topk:density=0.05", "topk:density=0.05,feedback=false", "powersgd:rank=2"]
STEPS = 6


def gradient(rank: int, number: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((rank, number))
    return {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in MODEL}


def trained(thread_world, tmp_path, size, *, op=None, **knobs):
    """Per rank the results of every step; rank 0's figures by step and arm."""
    worlds, path = worlds_of(thread_world, size, bucket_bytes=4096, **knobs), tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    for rank, world in enumerate(worlds):
        world.reports = Reports(str(path), None, rank)

    def run(rank):
        buckets = GradientBuckets(worlds[rank], "opt", MODEL, None, **({} if op is None else {"op": op}))
        results = []
        for number in range(STEPS):
            step(buckets, gradient(rank, number))
            results.append({p.name: buckets.view(p.name).copy() for p in MODEL})
        return results

    results = on_ranks(size, run)
    assert all(isinstance(r, list) for r in results), results
    worlds[0].reports.end(worlds[0].metrics)
    lines = [json.loads(line)["shadow"] for line in path.read_text().splitlines()[:-1]]
    return results, {line["step"]: line["figures"] for line in lines}


@pytest.mark.parametrize("size", [2, 3])
def test_figures_are_those_of_a_run_of_its_own_and_results_do_not_change(thread_world, tmp_path, size):
    exact, figures = trained(thread_world, tmp_path, size, shadow=",".join(ARMS))
    alone, nothing = trained(thread_world, tmp_path, size)
    assert nothing == {}
    for with_shadow, without in zip(exact, alone, strict=True):
        for a, b in zip(with_shadow, without, strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)
    assert list(figures) == list(range(1, STEPS + 1))
    assert list(figures[1]) == [compression.load(arm).spec for arm in ARMS]

    for arm in ARMS:  # each tensor by itself in a bucket of 4 KiB, so a simulation of tensors is the same exchange
        players = [compression.load(arm) for _ in range(size)]
        for number in range(STEPS):
            error = norm = dot = estimate = residual = given = 0.0
            sent = 0
            for p in MODEL:
                gradients = [gradient(rank, number)[p.name].ravel() for rank in range(size)]
                truth = np.mean(np.stack(gradients).astype(np.float64), axis=0)
                mean = truth
                if players[0].accepts(p.shape):
                    buckets = [compression.Bucket.of(g.copy(), [(p.name, p.shape)], r, size) for r, g in enumerate(gradients)]
                    played = compression.simulate(players, buckets)
                    mean, sent = played.means[0].astype(np.float64), sent + played.sent_bytes[0]
                    residual += players[0].squared_residual([p.name])
                    given += np.square(gradients[0]).sum()
                else:
                    sent += round(2 * (size - 1) / size * 4 * truth.size)
                error, norm, dot, estimate = error + np.square(mean - truth).sum(), norm + (truth**2).sum(), dot + mean @ truth, estimate + (mean**2).sum()
            found = figures[number + 1][compression.load(arm).spec]
            assert found["vnmse"] == pytest.approx(error / norm, rel=1e-3, abs=1e-9)
            assert found["cosine"] == pytest.approx(dot / np.sqrt(norm * estimate), rel=1e-4)
            assert found["residual_ratio"] == pytest.approx(np.sqrt(residual / given), rel=1e-4, abs=1e-9)
            assert found["wire_bytes"] == pytest.approx(sent, abs=64), "but for the units of tensors that travel together"
            assert found["encode_ms"] > 0
            assert found["decode_ms"] > 0
    assert figures[STEPS]["topk:density=0.05"]["residual_ratio"] > figures[STEPS]["topk:density=0.05,feedback=false"]["residual_ratio"] == 0


def test_every_so_many_steps_and_a_sum_instead_of_a_mean(thread_world, tmp_path):
    _, means = trained(thread_world, tmp_path, 2, shadow="int8", shadow_every=2)
    _, sums = trained(thread_world, tmp_path, 2, op=Sum, shadow="int8", shadow_every=2)
    assert list(means) == list(sums) == [1, 3, 5]
    assert sums[5]["int8"]["vnmse"] == pytest.approx(means[5]["int8"]["vnmse"], rel=1e-4)


def test_a_gradient_that_is_not_finite_reaches_no_candidate(thread_world, tmp_path):
    world, path = worlds_of(thread_world, 2, shadow="topk"), tmp_path / "r.jsonl"
    for rank, each in enumerate(world):
        each.reports = Reports(str(path), None, rank)

    def run(rank):
        buckets = GradientBuckets(world[rank], "opt", MODEL, None)
        for number in range(3):
            gradients = gradient(rank, number)
            if number == 1 and rank == 1:
                gradients["fc1.bias"][0] = np.inf
            step(buckets, gradients)

    assert on_ranks(2, run) == [None, None]
    world[0].reports.end(world[0].metrics)
    lines = [json.loads(line)["shadow"] for line in path.read_text().splitlines()[:-1]]
    assert [line["step"] for line in lines] == [1, 3]
    assert all(np.isfinite(value) for value in lines[1]["figures"]["topk"].values())


def test_a_shadow_needs_exact_gradients_and_a_place_for_its_figures(thread_world, tmp_path):
    (world,) = worlds_of(thread_world, 1, shadow="int8")
    with pytest.raises(SettingError, match="HVDLITE_SHADOW=int8 has nowhere to write"):
        GradientBuckets(world, "opt", MODEL, None)
    world.reports = Reports(str(tmp_path / "r.jsonl"))
    with pytest.raises(SettingError, match="'opt' compresses them by fp16; no compression is expected; set HVDLITE_COMPRESSION=none"):
        GradientBuckets(world, "opt", MODEL, compression.load("fp16"))
    GradientBuckets(world, "opt", MODEL, compression.load("none"))
    world.reports.end(world.metrics)
