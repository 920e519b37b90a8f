"""sign: one bit an entry."""

import numpy as np
import pytest

from hvdlite.compression import AllToAll, load
from hvdlite.errors import CompressionError


def ranks_of(count: int, block: int = 256):
    return [load(f"sign:block={block},feedback=false") for _ in range(count)]


def reference(vector: np.ndarray, block: int) -> np.ndarray:
    """Block by block, entry by entry, in double precision; a block that is not full is one with zeros at its end."""
    result = []
    for start in range(0, vector.size, block):
        part = vector[start : start + block]
        result.append(np.where(np.signbit(part), -1, 1) * np.float32(np.abs(part.astype(np.float64)).sum() / block))
    return np.concatenate(result).astype(np.float32)


@pytest.mark.parametrize("block", [8, 64, 256])
@pytest.mark.parametrize("size", [1, 255, 257, 3000])
def test_it_packs_as_the_plain_code_does(block, size, awkward, play):
    flat = awkward[:size]
    np.testing.assert_allclose(play(ranks_of(1, block), [flat]).mean, reference(flat, block), rtol=2.0**-23)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_take_the_sign_twice_but_for_two(ranks, play):
    rng = np.random.default_rng(0)
    flats = [rng.standard_normal(1024).astype(np.float32) for _ in range(ranks)]
    total = np.zeros(1024, np.float32)
    for flat in flats:
        total += reference(flat, 256)
    mean = total * np.float32(1 / ranks)
    expected = mean if ranks == 2 else reference(mean, 256)  # two swap all they have, and both add the same
    np.testing.assert_allclose(play(ranks_of(ranks), flats).mean, expected, rtol=1e-6)


def test_eight_entries_share_a_byte(make, play):
    flat = np.ones(16, np.float32)
    flat[[0, 3, 15]] = -1
    request = play(ranks_of(1, 16), [flat], make=make).requests[0]
    assert isinstance(request, AllToAll)
    packed, scale = (np.asarray(part) for part in request.parts[0])
    assert packed.tolist() == [0b1, 0b10000010]  # bit k of byte j: entry 2 k + j
    assert scale.tolist() == [1]


def test_blocks_of_zeros_stay_zero(make, play):
    flat = np.zeros(1024, np.float32)
    flat[256:512] = 2
    assert play(ranks_of(2), [flat, flat], make=make).mean.tolist() == flat.tolist()


def test_it_is_a_projection_also_of_uneven_gradients(make, play, relative_error):
    rng = np.random.default_rng(1)
    flat = (rng.standard_normal(256 * 40) * 10.0 ** rng.integers(-3, 1, 256 * 40)).astype(np.float32)
    sent = play(ranks_of(1), [flat], make=make).mean
    captured = np.abs(flat.reshape(-1, 256).astype(np.float64)).sum(axis=1) ** 2 / 256
    assert relative_error(sent, flat) == pytest.approx(1 - captured.sum() / np.sum(flat.astype(np.float64) ** 2), rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-45, 5e-43, 1e-38, 3e38])
def test_blocks_of_one_value_arrive_exactly(value, make, play):
    flat = np.full(256, value, np.float32)
    assert play(ranks_of(1), [flat], make=make).mean.tobytes() == flat.tobytes()


def test_the_mean_of_what_was_sent_arrives_although_it_is_encoded_again(make, play, relative_error):
    flats = [np.random.default_rng(seed).standard_normal(3000).astype(np.float32) for seed in range(4)]
    played = play(ranks_of(4), flats, make=make)
    assert relative_error(np.mean(np.asarray(played.sent, np.float64), axis=0), played.mean) < 1e-12


def test_error_feedback_delivers_in_the_end(play, relative_error):
    rng = np.random.default_rng(0)
    flats = [rng.standard_normal(1000).astype(np.float32) for _ in range(3)]
    compressors = [load("sign") for _ in flats]
    truth = np.mean(np.asarray(flats, np.float64), axis=0)
    delivered = np.cumsum([play(compressors, flats).mean.astype(np.float64) for _ in range(800)], axis=0)
    off = [relative_error(delivered[steps - 1] / steps, truth) for steps in (50, 800)]
    assert off[1] < 2e-3
    assert off[1] < off[0] / 20


def test_numpy_and_torch_give_the_same_bits(awkward, gives_the_same_bits_in_torch):
    assert gives_the_same_bits_in_torch("sign", awkward)


def test_what_it_sends():
    assert load("sign").wire_bytes([(1024, 2)], 2) == 2 * (128 + 4 * 4)
    assert not load("sign").accepts((4096,))


@pytest.mark.parametrize("block", [0, -8, 4, 100])
def test_blocks_of_no_use(block):
    with pytest.raises(CompressionError, match=rf"^block={block} is no length of a block; expected a power of two from 8; try sign:block=256$"):
        load(f"sign:block={block}")
