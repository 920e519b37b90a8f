"""Which neighbours travel as one."""

import numpy as np
import pytest
from engines import Held, reduction, result_of

from hvdlite import compression
from hvdlite.operations import Average, Sum


@pytest.mark.parametrize(("threshold", "expected"), [(0, 8), (400, 8), (800, 4), (1600, 2), (1 << 20, 1)])
def test_fusion_respects_the_threshold(thread_world, threshold, expected):
    world = thread_world(2, fusion_threshold_bytes=threshold)
    with Held(world.engines[0]), Held(world.engines[1]):
        handles = [world.engines[r].submit(reduction(f"t{i}", np.ones(50), r, 2)) for r in range(2) for i in range(8)]
    for handle in handles:
        result_of(handle)
    assert [m.exchanges for m in world.metrics] == [expected] * 2


@pytest.mark.parametrize(
    ("differing", "expected"),
    [({}, 1), ({"op": Sum}, 3), ({"prescale": 2.0}, 3), ({"postscale": 0.5}, 3), ({"compressor": compression.load("fp16")}, 3)],
)
def test_only_alike_reductions_are_fused(thread_world, differing, expected):
    world = thread_world(2)
    results: list[list[np.ndarray]] = [[], []]

    def submit(rank):
        results[rank] = [np.full(3, 1.0 + i, np.float32) for i in range(3)]
        for i, array in enumerate(results[rank]):
            yield world.engines[rank].submit(reduction(f"t{i}", array, rank, 2, **({"op": Average} | (differing if i == 1 else {}))))

    for _ in range(2):
        before = world.metrics[0].exchanges
        with Held(world.engines[0]), Held(world.engines[1]):
            handles = [*submit(0), *submit(1)]
        for handle in handles:
            result_of(handle)
    assert world.metrics[0].exchanges - before == expected
    middle = 2.0 * 2 if differing.get("op") is Sum or "prescale" in differing else 1.0 if "postscale" in differing else 2.0
    assert [a[0] for a in results[0]] == [1.0, middle, 3.0]


def test_mixed_dtypes_are_fused_into_one_exchange(thread_world):
    world = thread_world(2)
    arrays = [[np.full((2, 2), r + i).astype(d) for i, d in enumerate(["float32", "float64", "int32", "float16", "float32"])] for r in range(2)]
    with Held(world.engines[0]), Held(world.engines[1]):
        handles = [world.engines[r].submit(reduction(f"t{i}", a, r, 2, Sum)) for r in range(2) for i, a in enumerate(arrays[r])]
    for handle in handles:
        result_of(handle)
    assert world.metrics[0].exchanges == 1
    assert all((a == 2 * i + 1).all() for r in range(2) for i, a in enumerate(arrays[r]))
