"""topk: the largest entries, exactly."""

import numpy as np
import pytest

from hvdlite.compression import AllGather, load
from hvdlite.errors import CompressionError


def ranks_of(count: int, density: float):
    return [load("topk", density=density, feedback=False) for _ in range(count)]


def reference(flats: list[np.ndarray], density: float) -> np.ndarray:
    """Sort, take, add: in a dictionary of positions."""
    size = flats[0].size
    count = max(1, round(density * size))
    total: dict[int, np.float32] = {}
    for flat in flats:
        for position in sorted(range(size), key=lambda i: (-abs(flat[i]), i))[:count]:
            total[position] = np.float32(total.get(position, np.float32(0)) + flat[position])
    return np.array([total.get(i, np.float32(0)) / np.float32(len(flats)) for i in range(size)], np.float32)


@pytest.mark.parametrize("density", [1e-9, 0.01, 0.1, 0.333, 0.5, 1.0])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_adds_the_largest_entries_of_every_rank(density, ranks, make, play):
    rng = np.random.default_rng(ranks)
    flats = [rng.standard_normal(501).astype(np.float32) for _ in range(ranks)]
    np.testing.assert_array_equal(play(ranks_of(ranks, density), flats, make=make).mean, reference(flats, density))


def test_of_equal_entries_the_first_is_sent(make, play):
    flat = np.array([1, -2, 2, -2, 1, 2], np.float32)
    assert play(ranks_of(1, 0.5), [flat], make=make).mean.tolist() == [0, -2, 2, -2, 0, 0]


def test_what_is_left_is_exactly_what_was_not_sent(make, play):
    rng = np.random.default_rng(3)
    flats = [(rng.standard_normal(1000) * 10.0 ** rng.integers(-20, 20, 1000)).astype(np.float32) for _ in range(3)]
    played = play(ranks_of(3, 0.05), flats, make=make)
    for flat, sent, left in zip(flats, played.sent, played.left, strict=True):
        assert np.count_nonzero(sent) == 50
        assert not (sent * left).any()
        assert (sent + left).tobytes() == flat.tobytes()


def test_layers_compete_for_places(play):
    quiet, loud = np.full(100, 1e-3, np.float32), np.ones(100, np.float32)
    mean = play(ranks_of(1, 0.5), [np.concatenate([quiet, loud])], [("quiet", (10, 10)), ("loud", (10, 10))]).mean
    assert mean.tolist() == [0.0] * 100 + [1.0] * 100


def test_what_travels(play):
    request = play(ranks_of(2, 0.1), [np.arange(100, dtype=np.float32)] * 2).requests[0]
    assert isinstance(request, AllGather)
    index, values = request.arrays
    assert (index.dtype, values.dtype) == (np.int32, np.float32)
    assert index.tolist() == list(range(90, 100))


def test_each_entry_has_its_turn(play):
    """Of equal gradients, error feedback lets those wait longest go first."""
    compressor, flat = load("topk:density=0.1"), np.linspace(1, 1.1, 100, dtype=np.float32)
    delivered = sum(play([compressor], [flat]).mean for _ in range(200))
    np.testing.assert_allclose(delivered, 200 * flat, rtol=0.06)


def test_numpy_and_torch_give_the_same_bits(awkward, gives_the_same_bits_in_torch):
    for density in (0.01, 0.3, 1.0):
        assert gives_the_same_bits_in_torch(f"topk:density={density}", awkward)


@pytest.mark.parametrize(("written", "shown"), [("0", "0.0"), ("2", "2.0"), ("-0.5", "-0.5"), ("nan", "nan"), ("inf", "inf")])
def test_densities_that_are_none(written, shown):
    with pytest.raises(CompressionError, match=rf"^density={shown} is no share of the entries; expected a number in \(0, 1\]; try topk:density=0.01$"):
        load(f"topk:density={written}")
