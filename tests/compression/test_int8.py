"""int8: a scale for every block."""

import numpy as np
import pytest

from hvdlite.compression import load
from hvdlite.errors import CompressionError


def ranks_of(count: int, block: int = 256):
    return [load(f"int8:block={block},feedback=false") for _ in range(count)]


def reference(vector: np.ndarray, block: int) -> np.ndarray:
    """Block by block, entry by entry, in double precision, but for the scale: float32, cut to 17 bits."""
    result = []
    for start in range(0, vector.size, block):
        part = vector[start : start + block].astype(np.float64)
        scale = np.array([max(np.float32(np.abs(part).max()) * np.float32((1 + 2.0**-20) / 127), 2.0**-126)], np.float32)
        scale = float((scale.view(np.int32) & ~0x7F).view(np.float32)[0])
        result += [round(float(np.float32(x / scale))) * scale for x in part]
    return np.array(result, np.float32)


@pytest.mark.parametrize("block", [8, 100, 256])
@pytest.mark.parametrize("size", [1, 255, 257, 3000])
def test_it_quantises_as_the_plain_code_does(block, size, awkward, play):
    flat = awkward[:size]
    np.testing.assert_array_equal(play(ranks_of(1, block), [flat]).mean, reference(flat, block))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_quantise_twice_but_for_two(ranks, awkward, play):
    flats = [np.roll(awkward, 97 * r) for r in range(ranks)]
    total = np.zeros_like(awkward)
    for flat in flats:
        total += reference(flat, 256)
    mean = total * np.float32(1 / ranks)
    expected = mean if ranks == 2 else reference(mean, 256)  # two swap all they have, and both add the same
    np.testing.assert_array_equal(play(ranks_of(ranks), flats).mean, expected)


def test_the_largest_of_a_block_is_kept_and_the_others_are_within_half_a_step(make, play):
    rng = np.random.default_rng(1)
    flat = rng.standard_normal(256 * 20).astype(np.float32)
    blocks, sent = flat.reshape(-1, 256), play(ranks_of(1), [flat], make=make).sent[0].reshape(-1, 256)
    top = np.abs(blocks).max(axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(sent).max(axis=1, keepdims=True), top, rtol=2e-5)
    assert (np.abs(sent - blocks) <= top / 254 * 1.01).all()


def test_a_loud_block_does_not_silence_its_neighbour(play, relative_error):
    flat = np.random.default_rng(2).standard_normal(512).astype(np.float32)
    flat[256:] *= 1e-6
    assert relative_error(play(ranks_of(1), [flat]).mean[256:], flat[256:]) < 1e-4


@pytest.mark.parametrize("value", [0.0, 1e-45, 5e-43, 1e-38, 3e38])
def test_blocks_of_one_value_at_the_ends_of_the_range(value, make, play):
    flat = np.full(256, value, np.float32)
    assert np.abs(play(ranks_of(1), [flat], make=make).mean - flat).max() <= max(2e-5 * value, 2.0**-127)


def test_entries_under_half_a_step_arrive_only_through_error_feedback(play):
    flat = np.full(256, 1e-3, np.float32)
    flat[0] = 1.0
    without, feedback = load("int8", feedback=False), load("int8")
    lost = sum(play([without], [flat]).mean for _ in range(100))
    arrived = sum(play([feedback], [flat]).mean for _ in range(100))
    assert not lost[1:].any()
    np.testing.assert_allclose(arrived, 100 * flat, rtol=0.05)


def test_numpy_and_torch_give_the_same_bits(awkward, gives_the_same_bits_in_torch):
    assert gives_the_same_bits_in_torch("int8", awkward)


def test_what_it_sends():
    assert load("int8").wire_bytes([(1024, 2)], 2) == 2 * (1024 + 4 * 4)
    assert not load("int8").accepts((4096,))
    assert load("int8").accepts((64, 64))


@pytest.mark.parametrize("block", [0, -1, 7])
def test_blocks_too_short(block):
    with pytest.raises(CompressionError, match=rf"^block={block} is too short; expected at least 8 entries to share a scale of 4 bytes; try int8:block=256$"):
        load(f"int8:block={block}")
