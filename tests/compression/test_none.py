"""none: the exact mean, in any type."""

import numpy as np
import pytest

from hvdlite.arrays import dtype_name, numpy_dtype, ops
from hvdlite.compression import AllReduce, Bucket, load, simulate


def mean_of(values: list[float], dtype: str, like: str):
    arrays = [np.full(5, value, np.float32).astype(numpy_dtype(dtype)) for value in values]
    if like == "torch":
        xp = ops(pytest.importorskip("torch").empty(0))
        arrays = [xp.from_numpy(array) for array in arrays]
    buckets = [Bucket.of(array, [("w", (5,))], rank, len(arrays)) for rank, array in enumerate(arrays)]
    outcome = simulate([load("none") for _ in arrays], buckets)
    assert {dtype_name(mean) for mean in outcome.means} == {dtype}
    return set(ops(outcome.means[0]).to_numpy(outcome.means[0]).astype(np.float64).tolist()), outcome


@pytest.mark.parametrize("like", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_it_averages_in_the_given_type(dtype, like):
    assert mean_of([1, 2, 6], dtype, like)[0] == {3}


@pytest.mark.parametrize("like", ["numpy", "torch"])
@pytest.mark.parametrize(("dtype", "values", "mean"), [("float16", [40000] * 4, 40000), ("bfloat16", [256] + [1] * 7, 33), ("float8_e5m2", [40960] * 3, 40960)])
def test_narrow_types_are_summed_in_float32(dtype, values, mean, like):
    found, outcome = mean_of(values, dtype, like)
    assert found == {mean}
    assert not any(isinstance(request, AllReduce) for request in outcome.requests)
    share, ranks = -(-5 // len(values)), len(values)
    assert outcome.sent_bytes[0] == 2 * (ranks - 1) * share * numpy_dtype(dtype).itemsize  # of more than two ranks


def test_the_sum_of_float32_is_that_of_an_allreduce(play):
    rng = np.random.default_rng(0)
    flats = [rng.standard_normal(1000).astype(np.float32) for _ in range(3)]
    assert play([load("none") for _ in flats], flats).mean.tobytes() == ((flats[0] + flats[1] + flats[2]) * np.float32(1 / 3)).tobytes()
