"""int4: fifteen levels, two entries a byte."""

import numpy as np
import pytest

from hvdlite.compression import AllToAll, load
from hvdlite.errors import CompressionError


def ranks_of(count: int, block: int = 128):
    return [load(f"int4:block={block},feedback=false") for _ in range(count)]


def reference(vector: np.ndarray, block: int) -> np.ndarray:
    """Block by block, entry by entry, in double precision, but for the scale: float32, cut to 17 bits."""
    result = []
    for start in range(0, vector.size, block):
        part = vector[start : start + block].astype(np.float64)
        scale = np.array([max(np.float32(np.abs(part).max()) * np.float32((1 + 2.0**-20) / 7), 2.0**-126)], np.float32)
        scale = float((scale.view(np.int32) & ~0x7F).view(np.float32)[0])
        result += [round(float(np.float32(x / scale))) * scale for x in part]
    return np.array(result, np.float32)


@pytest.mark.parametrize("block", [8, 100, 128])
@pytest.mark.parametrize("size", [1, 127, 129, 3000])
def test_it_quantises_as_the_plain_code_does(block, size, awkward, play):
    flat = awkward[:size]
    np.testing.assert_array_equal(play(ranks_of(1, block), [flat]).mean, reference(flat, block))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_quantise_twice_but_for_two(ranks, awkward, play):
    flats = [np.roll(awkward, 97 * r) for r in range(ranks)]
    total = np.zeros_like(awkward)
    for flat in flats:
        total += reference(flat, 128)
    mean = total * np.float32(1 / ranks)
    expected = mean if ranks == 2 else reference(mean, 128)  # two swap all they have, and both add the same
    np.testing.assert_array_equal(play(ranks_of(ranks), flats).mean, expected)


def test_two_entries_share_a_byte(make, play):
    flat = np.zeros(8, np.float32)
    flat[:] = [7, -7, 0, 1, 2, -1, 3, -3]
    request = play(ranks_of(1, 8), [flat], make=make).requests[0]
    assert isinstance(request, AllToAll)
    packed, scale = (np.asarray(part) for part in request.parts[0])
    assert packed.tolist() == [7 + 8 | (2 + 8) << 4, -7 + 8 | (-1 + 8) << 4, 8 | (3 + 8) << 4, 1 + 8 | (-3 + 8) << 4]
    assert scale.tolist() == [1]


def test_the_error_is_a_hundredth(make, play, relative_error):
    flat = np.random.default_rng(1).standard_normal(128 * 400).astype(np.float32)
    assert 0.010 < relative_error(play(ranks_of(1), [flat], make=make).mean, flat) < 0.016


@pytest.mark.parametrize("value", [0.0, 1e-45, 5e-43, 1e-38, 3e38])
def test_blocks_of_one_value_at_the_ends_of_the_range(value, make, play):
    flat = np.full(128, value, np.float32)
    assert np.abs(play(ranks_of(1), [flat], make=make).mean - flat).max() <= max(2e-5 * value, 2.0**-127)


def test_error_feedback_delivers_both_roundings(play):
    """Also what is lost when the mean is encoded, which only one rank knows."""
    rng = np.random.default_rng(0)
    flats = [rng.standard_normal(1000).astype(np.float32) for _ in range(3)]
    compressors = [load("int4") for _ in flats]
    delivered = sum(play(compressors, flats).mean.astype(np.float64) for _ in range(100)) / 100
    np.testing.assert_allclose(delivered, np.mean(flats, axis=0), atol=0.02)


def test_numpy_and_torch_give_the_same_bits(awkward, gives_the_same_bits_in_torch):
    assert gives_the_same_bits_in_torch("int4", awkward)


def test_what_it_sends():
    assert load("int4").wire_bytes([(1024, 2)], 2) == 2 * (512 + 4 * 8)
    assert not load("int4").accepts((4096,))


@pytest.mark.parametrize("block", [0, -2, 6, 9])
def test_blocks_of_no_use(block):
    with pytest.raises(CompressionError, match=rf"^block={block} is no length of a block; expected an even number from 8; try int4:block=128$"):
        load(f"int4:block={block}")
