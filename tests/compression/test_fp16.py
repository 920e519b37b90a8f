"""fp16: half the bytes, at any scale, without overflow."""

import numpy as np
import pytest

from hvdlite.compression import AllToAll, load

SIZES = [1, 7, 1000]


def ranks_of(count: int):
    return [load("fp16") for _ in range(count)]


def test_four_ranks_of_40000_average_to_40000(make, play):
    assert play(ranks_of(4), [np.full(10, 40000, np.float32)] * 4, make=make).mean.tolist() == [40000.0] * 10


@pytest.mark.parametrize("scale", [1e30, 1e20, 70000.0, 1.0, 1e-12, 1e-30, 1e-38, 1e-43])
def test_every_scale_survives(scale, make, play):
    rng = np.random.default_rng(0)
    flats = [(scale * rng.standard_normal(4096)).astype(np.float32) for _ in range(3)]
    error = np.abs(play(ranks_of(3), flats, make=make).mean - np.mean(np.asarray(flats, np.float64), axis=0))
    assert error.max() <= 2.0**-11 * max(np.abs(flat).max() for flat in flats) + 2.0**-149


@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-12])
def test_entries_far_below_the_largest_keep_their_relative_precision(scale, play):
    flat = (scale * 2.0 ** -np.arange(0, 28, 0.1)).astype(np.float32)
    sent = play(ranks_of(1), [flat]).sent[0]
    assert (np.abs(sent.astype(np.float64) - flat) <= 2.0**-11 * flat).all()


def reference(chunk: np.ndarray) -> np.ndarray:
    """float16 in units of a power of two, an entry at a time."""
    largest = float(np.abs(chunk).max(initial=0))
    if not largest:
        return np.zeros_like(chunk)
    unit = 2.0 ** (np.floor(np.log2(largest)) - 14)
    if float(np.float16(largest / unit)) == 2.0**15:  # rounded up to the next power of two
        unit *= 2
    unit = max(unit, 2.0**-126)
    return np.array([float(np.float16(float(x) / unit)) * unit for x in chunk], np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_it_rounds_as_the_plain_code_does(size, awkward, play):
    flat = awkward[:size]
    assert play(ranks_of(1), [flat]).mean.tobytes() == reference(flat).tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_three_ranks_round_twice(size, awkward, play):
    flats = [awkward[:size], awkward[size : 2 * size], awkward[-size:]]
    share = -(-size // 3)
    expected = []
    for start in range(0, size, share):
        total = np.zeros(min(share, size - start), np.float32)
        for flat in flats:
            total += reference(flat[start : start + share])
        expected.append(reference(total * np.float32(1 / 3)))
    np.testing.assert_array_equal(play(ranks_of(3), flats).mean, np.concatenate(expected))


def test_the_payload_never_comes_near_the_end_of_float16(play):
    for largest in [1.0, 1.9999, 65504.0, 3e38, 2.0**-130, np.nextafter(np.float32(2), np.float32(0))]:
        request = play(ranks_of(1), [np.full(4, largest, np.float32)]).requests[0]
        assert isinstance(request, AllToAll)
        assert all(np.abs(half.astype(np.float32)).max() <= 2.0**15 for half, _ in request.parts)


def test_numpy_and_torch_give_the_same_bits(awkward, gives_the_same_bits_in_torch):
    assert gives_the_same_bits_in_torch("fp16", awkward)


def test_every_tensor_is_accepted_and_none_needs_feedback():
    assert all(load("fp16").accepts(shape) for shape in [(), (1,), (3, 3), (1000, 1000)])
    assert load("fp16").spec == "fp16"
