"""powersgd: against the textbook, matrix by matrix."""

from itertools import pairwise

import numpy as np
import pytest

from hvdlite.compression import AllReduce, Bucket, ErrorFeedback, load
from hvdlite.errors import CompressionError

LAYERS = [("first", (64, 48)), ("bias", (64,)), ("conv", (32, 8, 3, 3)), ("tiny", (4, 4)), ("second", (64, 48)), ("tall", (200, 40))]
SIZE = 2 * 64 * 48 + 64 + 32 * 72 + 16 + 8000


def gradients(ranks: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(SIZE).astype(np.float32) for _ in range(ranks)]


def ranks_of(count: int, rank: int = 2):
    return [load(f"powersgd:rank={rank},feedback=false") for _ in range(count)]


def start_of(name: str, rows: int, columns: int, rank: int) -> np.ndarray:
    """The first Q of a parameter, seen from outside: what a gradient of zeros leaves."""
    compressor = load(f"powersgd:rank={rank},feedback=false")
    exchange = compressor.exchange(Bucket.of(np.zeros(rows * columns, np.float32), [(name, (rows, columns))], 0, 1))
    request = next(exchange)
    try:
        exchange.send(exchange.send(request.array).array)
    except StopIteration:
        return compressor.state_dict()[name]["q"].T.astype(np.float64)
    raise AssertionError("two reductions were expected")


def textbook(name: str, steps: list[list[np.ndarray]], rank: int, feedback: bool) -> np.ndarray:
    """Algorithm 1 and 2 of the paper for one matrix, in double precision with Gram-Schmidt; the last step's result."""
    rows, columns = steps[0][0].shape
    q = start_of(name, rows, columns, rank)
    errors = [np.zeros((rows, columns)) for _ in steps[0]]
    for grads in steps:
        given = [g + e for g, e in zip(grads, errors, strict=True)]
        p = np.mean([a @ q for a in given], axis=0)
        for i in range(rank):
            for j in range(i):
                p[:, i] -= (p[:, i] @ p[:, j]) * p[:, j]
            p[:, i] /= np.linalg.norm(p[:, i])
        q = np.mean([a.T @ p for a in given], axis=0)
        estimate = p @ q.T
        errors = [(a - estimate) * feedback for a in given]
    return estimate


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 3])
def test_it_is_the_algorithm_of_the_paper(feedback, rank, ranks, make, play):
    compressors = [load(f"powersgd:rank={rank}", feedback=feedback) for _ in range(ranks)]
    steps = [gradients(ranks, seed) for seed in range(3)]
    for flats in steps:
        mean = play(compressors, flats, LAYERS, make).mean
    start = 0
    for name, shape in LAYERS:
        stop = start + int(np.prod(shape))
        seen = [[flat[start:stop].reshape(shape[0], -1).astype(np.float64) for flat in flats] for flats in steps]
        exact = not compressors[0].accepts(shape)
        expected = np.mean(seen[-1], axis=0) if exact else textbook(name, seen, rank, feedback)
        np.testing.assert_allclose(mean[start:stop].reshape(expected.shape), expected, atol=2e-5 * np.abs(expected).max() * (50 if not exact else 1))
        start = stop


def test_what_travels(play):
    requests = play(ranks_of(2, rank=2), gradients(2), LAYERS).requests
    assert [type(r) for r in requests] == [AllReduce, AllReduce]
    assert [r.array.shape for r in requests] == [(2 * (64 + 32 + 64 + 200) + 64 + 16,), (2 * (48 + 72 + 48 + 40),)]


def test_a_bucket_without_matrices_is_averaged_in_one_reduction(make, play):
    flats = [np.arange(20, dtype=np.float32), np.ones(20, np.float32)]
    played = play(ranks_of(2), flats, [("bias", (4,)), ("tiny", (4, 4))], make)
    assert played.mean.tolist() == np.mean(flats, axis=0).tolist()
    assert len(played.requests) == 1


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_matrix_of_that_rank_is_exact_from_the_first_step(rank, make, play):
    rng = np.random.default_rng(0)
    flat = (rng.standard_normal((64, rank)) @ rng.standard_normal((rank, 48))).astype(np.float32).reshape(-1)
    np.testing.assert_allclose(play(ranks_of(1, rank), [flat], [("w", (64, 48))], make).mean, flat, atol=2e-5)


def test_a_warm_start_finds_the_best_approximation(play, relative_error):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((256, 192)) + 3 * (rng.standard_normal((256, 6)) * [3, 2.5, 2, 1.5, 1, 0.5]) @ rng.standard_normal((6, 192))
    flat, singular = matrix.astype(np.float32).reshape(-1), np.linalg.svd(matrix, compute_uv=False)
    best = float((singular[4:] ** 2).sum() / (singular**2).sum())
    compressors = ranks_of(1, rank=4)
    errors = [relative_error(play(compressors, [flat], [("w", (256, 192))]).mean, flat) for _ in range(6)]
    assert errors[0] > 1.02 * best
    assert errors[-1] < 1.01 * best
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(errors))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_it_recovers_from_gradients_without_any_direction(rank, make, play, relative_error):
    """Zeros, then rows of zeros just where unit vectors look, then a gradient of rank one, then a full one."""
    shape = [("embedding", (64, 48))]
    compressors = ranks_of(2, rank)
    touched = np.zeros((64, 48), np.float32)
    touched[40] = np.arange(1, 49)
    full = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    for _ in range(3):
        assert not play(compressors, [np.zeros(64 * 48, np.float32)] * 2, shape, make).mean.any()
    for _ in range(3):
        mean = play(compressors, [touched.reshape(-1)] * 2, shape, make).mean
    assert relative_error(mean, touched.reshape(-1)) < 1e-9
    for _ in range(10):
        mean = play(compressors, [full.reshape(-1)] * 2, shape, make).mean
    singular = np.linalg.svd(full, compute_uv=False)
    assert relative_error(mean, full.reshape(-1)) < 1.03 * (singular[rank:] ** 2).sum() / (singular**2).sum()


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-20, 1e20, 1e34])
def test_the_scale_of_the_gradient_does_not_matter(scale, make, play, relative_error):
    """Warm starts multiply the gradient by itself, in a word: 1e-30 would vanish and 1e20 overflow."""
    compressors, plain = ranks_of(2), ranks_of(2)
    for seed in range(4):
        flats = gradients(2, seed)
        mean = play(compressors, [(flat * scale).astype(np.float32) for flat in flats], LAYERS, make).mean
        expected = play(plain, flats, LAYERS, make).mean
    assert relative_error(mean.astype(np.float64) / scale, expected) < (1e-2 if scale < 1e-38 else 1e-6)


def test_buckets_do_not_matter(make, play):
    together, apart = ranks_of(2), ranks_of(2)
    for seed in range(3):
        flats = gradients(2, seed)
        mean = play(together, flats, LAYERS, make).mean
        start, parts = 0, []
        for name, shape in LAYERS:
            stop = start + int(np.prod(shape))
            parts.append(play(apart, [flat[start:stop] for flat in flats], [(name, shape)], make).mean)
            start = stop
        assert mean.tobytes() == np.concatenate(parts).tobytes()


def test_the_first_q_depends_on_the_name_alone():
    assert start_of("w", 64, 48, 2).tobytes() == start_of("w", 96, 48, 2).tobytes()
    assert start_of("w", 64, 48, 2).tobytes() != start_of("v", 64, 48, 2).tobytes()
    in_every_process = [-0.4580963, 0.6890520, -0.6745409]
    np.testing.assert_allclose(start_of("layer.weight", 64, 48, 1)[:3, 0], in_every_process, rtol=1e-6)


def test_a_state_of_another_rank_starts_afresh(play):
    old, new, fresh = ranks_of(1, rank=2), ranks_of(1, rank=4), ranks_of(1, rank=4)
    play(old, gradients(1), LAYERS)
    new[0].load_state_dict(old[0].state_dict())
    assert play(new, gradients(1), LAYERS).mean.tobytes() == play(fresh, gradients(1), LAYERS).mean.tobytes()


def test_residuals_and_q_share_a_state(play):
    compressor = load("powersgd:rank=2")
    play([compressor], gradients(1), LAYERS)
    state = compressor.state_dict()
    assert state["first"].keys() == {"q", "residual"}
    assert state["first"]["q"].shape == (2, 48)
    assert state["bias"].keys() == {"residual"}


@pytest.mark.parametrize(
    ("shape", "rank", "accepted"),
    [
        ((64, 48), 13, True),
        ((64, 48), 14, False),
        ((32, 8, 3, 3), 11, True),
        ((32, 8, 3, 3), 12, False),
        ((31, 33), 1, False),
        ((1, 4096), 1, False),
        ((4096,), 1, False),
    ],
)
def test_a_matrix_is_accepted_if_it_shrinks_enough(shape, rank, accepted):
    assert load(f"powersgd:rank={rank}").accepts(shape) is accepted
    elements, thin = int(np.prod(shape)), rank * (shape[0] + int(np.prod(shape[1:])))
    assert (thin * 2 < elements and elements >= 1024 and len(shape) > 1) is accepted


def test_the_rate_of_compression_is_an_option():
    assert load("powersgd:rank=20").accepts((64, 48)) is False
    assert load("powersgd:rank=20,min_compression_rate=1").accepts((64, 48)) is True


SHAPES = {"embed": (1000, 64), "small": (64, 48), "bias": (4096,)}


def test_a_rank_too_high_for_every_matrix_is_refused():
    text = "rank=64 is too high for every matrix of this model; the largest, embed (1000x64), allows at most 30; lower rank, or use another compressor"
    with pytest.raises(CompressionError) as refused:
        load("powersgd:rank=64").check(SHAPES)
    assert str(refused.value) == text
    load("powersgd:rank=30").check(SHAPES)
    with pytest.raises(CompressionError):
        ErrorFeedback(load("powersgd:rank=31,feedback=false")).check(SHAPES)


def test_a_model_that_no_rank_could_compress_is_not_refused():
    load("powersgd").check({"bias": (4096,), "tiny": (4, 4)})
    load("powersgd").check({})


@pytest.mark.parametrize("rank", [0, -3])
def test_ranks_that_are_none(rank):
    with pytest.raises(CompressionError, match=rf"^rank={rank} sends nothing; expected a whole number from 1; try powersgd:rank=4$"):
        load(f"powersgd:rank={rank}")


@pytest.mark.parametrize(("written", "shown"), [("0.5", "0.5"), ("nan", "nan"), ("inf", "inf")])
def test_rates_that_are_none(written, shown):
    with pytest.raises(CompressionError) as refused:
        load(f"powersgd:min_compression_rate={written}")
    expected = f"min_compression_rate={shown} is no rate of compression; expected a number from 1; try powersgd:min_compression_rate=2"
    assert str(refused.value) == expected
