"""bf16: half the bytes, the range of float32."""

import numpy as np
import pytest

from hvdlite.compression import load


def reference(vector: np.ndarray) -> np.ndarray:
    """The upper half of each float32, to the nearest, ties to even, in integers."""
    word = vector.view(np.uint32).astype(np.uint64)
    rounded = (word + 0x7FFF + ((word >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def test_it_rounds_to_the_upper_half(awkward, make, play):
    assert play([load("bf16")], [awkward], make=make).mean.tobytes() == reference(awkward).tobytes()


def test_the_sum_is_kept_in_float32(make, play):
    """A sum in bfloat16 would stop at 256."""
    values = [256, 1, 1, 1, 1, 1, 1, 1]
    mean = play([load("bf16") for _ in values], [np.full(3, v, np.float32) for v in values], make=make).mean
    np.testing.assert_array_equal(mean, reference(np.full(3, 263 / 8, np.float32)))


@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-30])
def test_the_relative_error_is_half_a_step_twice(scale, play):
    rng = np.random.default_rng(0)
    flats = [(scale * rng.uniform(1, 2, 1000)).astype(np.float32) for _ in range(2)]
    truth = np.mean(np.asarray(flats, np.float64), axis=0)
    assert (np.abs(play([load("bf16") for _ in range(2)], flats).mean - truth) <= 1.01 * 2.0**-7 * truth).all()


def test_numpy_and_torch_give_the_same_bits(awkward, gives_the_same_bits_in_torch):
    assert gives_the_same_bits_in_torch("bf16", awkward)


def test_every_tensor_is_accepted_and_none_needs_feedback():
    assert all(load("bf16").accepts(shape) for shape in [(), (1,), (3, 3), (1000, 1000)])
    assert load("bf16").spec == "bf16"
