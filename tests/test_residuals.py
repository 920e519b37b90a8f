"""What is noted of residuals under ``hvdlite ab``, and compression that begins later."""

import json

import numpy as np
import pytest
from bucket_worlds import MODEL, on_ranks, step, worlds_of

from hvdlite import compression
from hvdlite.buckets import GradientBuckets
from hvdlite.telemetry.reports import Reports

STEPS = 45


def gradient(rank: int, number: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((rank, number))
    return {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in MODEL}


def trained(thread_world, spec, *, path=None, steps=STEPS, **knobs):
    worlds = worlds_of(thread_world, 2, bucket_bytes=4096, slots_in_use=2, **knobs)
    if path is not None:
        for rank, world in enumerate(worlds):
            world.reports = Reports(str(path), None, rank)

    def run(rank):
        buckets = GradientBuckets(worlds[rank], "opt", MODEL, None if spec is None else compression.load(spec))
        return [(step(buckets, gradient(rank, number)), {p.name: buckets.view(p.name).copy() for p in MODEL})[1] for number in range(steps)]

    results = on_ranks(2, run)
    assert all(isinstance(r, list) for r in results), results
    if path is None:
        return results[0], []
    worlds[0].reports.end(worlds[0].metrics)
    return results[0], [json.loads(line) for line in path.read_text().splitlines()[:-1]]


def equal(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("spec", ["topk:density=0.05", "powersgd:rank=1", "sign"])
def test_residuals_are_noted_and_nothing_changes(thread_world, tmp_path, spec):
    results, lines = trained(thread_world, spec, path=tmp_path / "r.jsonl")
    alone, _ = trained(thread_world, spec)
    assert all(map(equal, results, alone))
    assert [line["residual"]["step"] for line in lines] == [1, 21, 41]

    player, given = compression.load(spec), gradient(0, 0)
    residual = total = 0.0
    for p in (p for p in MODEL if player.accepts(p.shape)):
        players = [compression.load(spec) for _ in range(2)]
        compression.simulate(players, [compression.Bucket.of(gradient(r, 0)[p.name].ravel(), [(p.name, p.shape)], r, 2) for r in range(2)])
        residual += players[0].squared_residual([p.name])
        total += np.square(given[p.name]).sum()
    assert lines[0]["residual"]["ratio"] == pytest.approx(np.sqrt(residual / total), rel=1e-4)


def test_compression_may_begin_later_and_until_then_bits_are_those_without(thread_world):
    late, _ = trained(thread_world, "topk:density=0.05", steps=8, compress_after_steps=5)
    exact, _ = trained(thread_world, None, steps=8)
    fresh, _ = trained(thread_world, "topk:density=0.05", steps=8)
    assert [equal(a, b) for a, b in zip(late, exact, strict=True)] == [True] * 5 + [False] * 3
    assert not equal(late[5], fresh[5]), "its residual begins at zero then"
    assert np.count_nonzero(late[5]["fc1.weight"]) < np.count_nonzero(exact[5]["fc1.weight"])
