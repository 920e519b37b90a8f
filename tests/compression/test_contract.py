"""The laws that every compressor keeps, on numpy and on torch arrays; a new file in the folder is held to them at once."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hvdlite.compression
from hvdlite.arrays import ops
from hvdlite.compression import Bucket, Compressor, ErrorFeedback, load, names, simulate

LAYERS = [("first", (64, 48)), ("bias", (5,)), ("conv", (32, 8, 3, 3)), ("scale", ()), ("second", (64, 48)), ("row", (1, 7))]
SHAPES = [shape for _, shape in LAYERS]
SIZE = sum(map(math.prod, SHAPES))

every_compressor = pytest.mark.parametrize("name", names())


def plain(name: str) -> Compressor:
    return load(name, feedback=False)


def gradients(ranks: int, seed: int = 0) -> list[np.ndarray]:
    """One common direction and as much noise on every rank."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(SIZE)
    return [(common + rng.standard_normal(SIZE)).astype(np.float32) for _ in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
@every_compressor
def test_what_travels_in_pieces_is_the_same_bits(name, ranks, make, play):
    """And in one step with error feedback, so that what was sent is the same, too."""
    rng = np.random.default_rng(4)
    steps = [[(rng.standard_normal(410_000) * 10.0 ** rng.integers(-6, 1, 410_000)).astype(np.float32) for _ in range(ranks)] for _ in range(2)]
    shapes = [("weight", (1000, 400)), ("other", (100, 100))]
    found = []
    for piece_bytes in (0, 50_000):
        compressors = [load(name, feedback=name != "none") for _ in range(ranks)]
        found.append([play(compressors, flats, shapes, make, in_place=True, piece_bytes=piece_bytes) for flats in steps])
    whole, pieces = found
    assert [p.mean.tobytes() for p in whole] == [p.mean.tobytes() for p in pieces]
    assert [p.sent_bytes for p in whole] == [p.sent_bytes for p in pieces]
    if load(name).collective == "two-sided":
        assert len(pieces[0].requests) >= 2 * len(whole[0].requests)


@every_compressor
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_gets_the_same_finite_float32_vector(name, ranks, make, play):
    played = play([plain(name) for _ in range(ranks)], gradients(ranks), LAYERS, make)
    for mean in played.means:
        assert mean.shape == (SIZE,)
        assert mean.dtype == np.float32
        assert np.isfinite(mean).all()
        assert mean.tobytes() == played.mean.tobytes()


@every_compressor
def test_a_rank_alone_receives_what_it_sent(name, make, play):
    for seed in range(20):
        played = play([plain(name)], gradients(1, seed), LAYERS, make)
        np.testing.assert_array_equal(played.mean, played.sent[0])


@every_compressor
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_mean_of_what_was_sent_is_what_arrives(name, ranks, make, play, relative_error):
    played = play([plain(name) for _ in range(ranks)], gradients(ranks), LAYERS, make)
    assert relative_error(played.mean, np.mean(played.sent, axis=0)) < 1e-4


@every_compressor
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_zeros_give_zeros(name, ranks, make, play):
    played = play([load(name) for _ in range(ranks)], [np.zeros(SIZE, np.float32)] * ranks, LAYERS, make)
    assert not played.mean.any()


@every_compressor
def test_gradients_that_were_zero_for_a_while_are_compressed_as_well_as_others(name, make, play, relative_error):
    late, fresh = [load(name) for _ in range(2)], [load(name) for _ in range(2)]
    for _ in range(3):
        play(late, [np.zeros(SIZE, np.float32)] * 2, LAYERS, make)
    truth = np.mean(gradients(2), axis=0)
    error = relative_error(play(late, gradients(2), LAYERS, make).mean, truth)
    assert error <= relative_error(play(fresh, gradients(2), LAYERS, make).mean, truth) + 1e-6


@every_compressor
def test_results_repeat_and_leave_the_global_random_state_alone(name, make, play):
    def two_steps() -> bytes:
        compressors = [load(name) for _ in range(2)]
        play(compressors, gradients(2), LAYERS, make)
        return play(compressors, gradients(2, seed=1), LAYERS, make).mean.tobytes()

    np.random.seed(1)
    before = np.random.get_state()[1].tobytes()
    first = two_steps()
    assert np.random.get_state()[1].tobytes() == before
    np.random.seed(2)
    assert two_steps() == first


@every_compressor
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_wire_bytes_are_those_that_are_sent(name, ranks, make, play):
    played = play([plain(name) for _ in range(ranks)], gradients(ranks), LAYERS, make)
    assert set(played.sent_bytes) == {plain(name).wire_bytes(SHAPES, ranks)}


@every_compressor
@pytest.mark.parametrize("shapes", [[(1,)], [(3,), (1, 2)], [(300,)], [(40, 40)], [(64, 48)] * 3, [(0, 4), (2,)], [(0,)]])
def test_wire_bytes_of_small_and_odd_buckets(name, shapes, play):
    layers = [(str(i), shape) for i, shape in enumerate(shapes)]
    flats = [np.ones(sum(map(math.prod, shapes)), np.float32)] * 3
    played = play([plain(name) for _ in range(3)], flats, layers)
    assert set(played.sent_bytes) == {plain(name).wire_bytes(shapes, 3)}
    assert played.mean.shape == flats[0].shape


@every_compressor
def test_gradients_are_left_alone(name, make, play):
    flats = gradients(2)
    for flat, after in zip(flats, play([plain(name) for _ in range(2)], flats, LAYERS, make).flats, strict=True):
        assert flat.tobytes() == after.tobytes()


@every_compressor
def test_the_result_may_go_where_the_gradient_was(name, make, play):
    apart = play([plain(name) for _ in range(3)], gradients(3), LAYERS, make)
    in_place = play([plain(name) for _ in range(3)], gradients(3), LAYERS, make, in_place=True)
    assert in_place.mean.tobytes() == apart.mean.tobytes()


@every_compressor
def test_error_feedback_may_write_the_result_where_the_gradient_was(name, make, play):
    apart, in_place = [ErrorFeedback(plain(name)) for _ in range(2)], [ErrorFeedback(plain(name)) for _ in range(2)]
    for seed in range(3):
        expected = play(apart, gradients(2, seed), LAYERS, make)
        assert play(in_place, gradients(2, seed), LAYERS, make, in_place=True).mean.tobytes() == expected.mean.tobytes()


@every_compressor
def test_numpy_and_torch_agree(name, play):
    torch = pytest.importorskip("torch")
    one, other = (play([plain(name) for _ in range(3)], gradients(3), LAYERS, make).mean for make in (np.asarray, torch.from_numpy))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@st.composite
def bucket_of_gradients(draw) -> tuple[list[tuple[str, tuple[int, ...]]], list[np.ndarray]]:
    """Layers of random shapes, and gradients from denormal to huge, for one to three ranks."""
    side = st.integers(1, 48)
    shapes = draw(st.lists(st.one_of(st.tuples(side), st.tuples(side, side), st.tuples(side, st.integers(1, 8), st.integers(1, 9))), min_size=1, max_size=4))
    size = sum(map(math.prod, shapes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = np.float64(10) ** draw(st.integers(-20, 20))
    fill = draw(st.sampled_from(["normal", "constant", "sparse", "denormal", "spread", "one hot"]))
    flats = []
    for _ in range(draw(st.integers(1, 3))):
        values = {
            "normal": lambda: scale * rng.standard_normal(size),
            "constant": lambda: np.full(size, scale),
            "sparse": lambda: scale * rng.standard_normal(size) * (rng.random(size) < 0.05),
            "denormal": lambda: rng.integers(-200, 201, size) * 2.0**-149,
            "spread": lambda: scale * rng.standard_normal(size) * 10.0 ** rng.integers(-18, 1, size),
            "one hot": lambda: scale * (np.arange(size) == rng.integers(size)),
        }[fill]()
        flats.append(values.astype(np.float32))
    return [(f"layer {i}", shape) for i, shape in enumerate(shapes)], flats


@every_compressor
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(drawn=bucket_of_gradients())
def test_whatever_the_gradient_nothing_is_lost(name, drawn, play):
    layers, flats = drawn
    kind = plain(name)
    played = play([plain(name) for _ in flats], flats, layers)
    assert all(np.isfinite(mean).all() for mean in played.means)
    assert len({mean.tobytes() for mean in played.means}) == 1
    for flat, sent, left in zip(flats, played.sent, played.left, strict=True):
        total = sent.astype(np.float64) + left
        np.testing.assert_array_less(np.abs(total - flat), 2.0**-23 * (np.abs(flat.astype(np.float64)) + np.abs(sent)) + 2.0**-150)
    if kind.biased and len(flats) == 1:
        before, after = (float(np.sum(v.astype(np.float64) ** 2)) for v in (flats[0], played.left[0]))
        assert after <= before * (1 + 1e-5) + flats[0].size * (4 * 2.0**-149) ** 2


@every_compressor
def test_error_feedback_delivers_in_the_end_what_was_given(name, play):
    """The sum of what arrived differs from the sum of the gradients by what is still held back, which does not grow with the steps."""

    compressors = [ErrorFeedback(plain(name)) for _ in range(2)]
    given, delivered, shortfall = np.zeros(SIZE), np.zeros(SIZE), []
    for step in range(160):
        flats = [g + noise for g, noise in zip(gradients(2), gradients(2, seed=100 + step), strict=True)]
        given += np.mean(np.asarray(flats, np.float64), axis=0)
        delivered += play(compressors, flats, LAYERS).mean
        shortfall.append(float(np.linalg.norm(given - delivered) / np.linalg.norm(given)))
    assert shortfall[-1] < max(0.4 * shortfall[19], 5e-3)
    assert shortfall[-1] < 0.25


@every_compressor
@pytest.mark.parametrize("regrouped", [[LAYERS], [LAYERS[::-1]], [LAYERS[:2], LAYERS[2:]], [LAYERS[3:], LAYERS[2::-1]]])
def test_a_resumed_run_is_the_uninterrupted_one_also_in_other_buckets(name, regrouped, make, play):
    def steps(compressors, groups, seeds) -> list[bytes]:
        results = []
        for seed in seeds:
            flats = gradients(2, seed)
            for group in groups:
                results.append(play(compressors, [_part(flat, group) for flat in flats], group, make).mean.tobytes())
        return results

    uninterrupted = [load(name) for _ in range(2)]
    steps(uninterrupted, [LAYERS], [1, 2, 3])
    resumed = [load(name) for _ in range(2)]
    for old, new in zip(uninterrupted, resumed, strict=True):
        new.load_state_dict(old.state_dict())
    assert steps(resumed, regrouped, [4, 5]) == steps(uninterrupted, regrouped, [4, 5])


@every_compressor
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_who_claims_not_to_depend_on_the_bucket_gives_the_same_bits_in_any(name, feedback, ranks, play):
    """The same parameters in one bucket, in several, and in others every step, with what is remembered."""
    dealings = [[LAYERS], [[layer] for layer in LAYERS], [LAYERS[3:], LAYERS[:3]], [LAYERS[1::2], LAYERS[::2]]]

    def steps(dealing_of) -> list[bytes]:
        compressors, results = [load(name, feedback=feedback) for _ in range(ranks)], []
        for step in range(5):
            flats, means = gradients(ranks, step), {}
            for group in dealing_of(step):
                mean = play(compressors, [_part(flat, group) for flat in flats], group).mean
                means |= {tensor.name: tensor.array.tobytes() for tensor in Bucket.of(mean, group, 0, 1).tensors}
            results += [means[layer] for layer, _ in LAYERS]
        states = [{key: {q: a.tobytes() for q, a in quantities.items()} for key, quantities in sorted(c.state_dict().items())} for c in compressors]
        return [*results, repr(states).encode()]

    if load(name, feedback=feedback).depends_on_bucket:
        return  # it claims nothing
    together = steps(lambda step: dealings[0])
    assert steps(lambda step: dealings[1]) == together
    assert steps(lambda step: dealings[step % len(dealings)]) == together


def test_the_compressors_whose_buckets_may_be_chosen_by_measurement():
    assert {name for name in names() if not load(name).depends_on_bucket} == {"none", "powersgd"}


def _part(flat: np.ndarray, group: list[tuple[str, tuple[int, ...]]]) -> np.ndarray:
    """Those layers of the whole gradient, in that order."""
    whole = {tensor.name: tensor.array.reshape(-1) for tensor in Bucket.of(flat, LAYERS, 0, 1).tensors}
    return np.concatenate([whole[layer] for layer, _ in group])


@every_compressor
def test_a_saved_state_is_not_changed_by_what_follows(name, make, play):
    compressor = load(name)
    play([compressor], gradients(1), LAYERS, make)
    state = compressor.state_dict()
    before = {key: {q: array.tobytes() for q, array in quantities.items()} for key, quantities in state.items()}
    play([compressor], gradients(1, seed=1), LAYERS, make)
    assert {key: {q: array.tobytes() for q, array in quantities.items()} for key, quantities in state.items()} == before
    assert all(isinstance(array, np.ndarray) for quantities in state.values() for array in quantities.values())


@every_compressor
def test_a_state_that_was_loaded_and_not_used_is_saved_again(name, play):
    old, new = load(name), load(name)
    play([old], gradients(1), LAYERS)
    new.load_state_dict(old.state_dict())
    saved, again = old.state_dict(), new.state_dict()
    assert saved.keys() == again.keys()
    for key, quantities in saved.items():
        for quantity, array in quantities.items():
            np.testing.assert_array_equal(again[key][quantity], array)


@every_compressor
def test_a_larger_loss_scale_scales_the_result_and_nothing_else(name, make, play):
    unscaled, scaled = ([load(name) for _ in range(2)] for _ in range(2))
    for compressors in (unscaled, scaled):
        play(compressors, gradients(2), LAYERS, make)
    for compressor in scaled:
        compressor.rescale(8.0)
    expected = play(unscaled, gradients(2, seed=1), LAYERS, make).mean * 8
    np.testing.assert_array_equal(play(scaled, [g * np.float32(8) for g in gradients(2, seed=1)], LAYERS, make).mean, expected)


@every_compressor
def test_a_flush_sends_everything_once(name, make, play, relative_error):
    compressors = [ErrorFeedback(plain(name)) for _ in range(2)]
    given = np.mean(gradients(2), axis=0) + np.mean(gradients(2, seed=1), axis=0)
    delivered = play(compressors, gradients(2), LAYERS, make).mean
    assert len({c.signature for c in compressors}) == 1
    calm = compressors[0].signature
    for compressor in compressors:
        compressor.flush()
    assert compressors[0].signature != calm
    delivered = delivered + play(compressors, gradients(2, seed=1), LAYERS, make).mean
    assert relative_error(delivered, given) < 1e-4  # two-sided means are rounded once more, for everybody alike
    assert not any(q["residual"].any() for c in compressors for q in c.state_dict().values())
    assert compressors[0].signature == calm
    after = play(compressors, gradients(2, seed=2), LAYERS, make)
    assert after.sent_bytes[0] == plain(name).wire_bytes(SHAPES, 2)


@every_compressor
def test_what_a_user_types_leads_back(name):
    compressor = load(name)
    assert compressor.spec == name
    assert load(compressor.spec).spec == name


ECHO = '''
from dataclasses import dataclass

from hvdlite.compression import AllReduce, Compressor, Dense


@dataclass
class Echo(Compressor):
    """Sends the gradient and counts nothing."""

    times: int = 1

    def exchange(self, bucket):
        total = yield AllReduce(bucket.flat * self.times)
        bucket.out[:] = total / bucket.num_ranks
        return bucket.out, Dense(lambda: bucket.out)

    def wire_bytes(self, shapes, num_ranks):
        return 0
'''


def test_a_new_file_is_a_new_compressor(tmp_path: Path, monkeypatch, play):
    before = names()
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "_hidden.py").write_text(ECHO)
    monkeypatch.setattr(hvdlite.compression, "__path__", [*hvdlite.compression.__path__, str(tmp_path)])
    monkeypatch.setattr(hvdlite.compression, "echo", None, raising=False)  # what the import sets goes with the test
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        assert names() == sorted([*before, "echo"])
        assert load("echo:times=3").spec == "echo:times=3"
        assert play([load("echo:times=3")], [np.ones(2, np.float32)]).mean.tolist() == [3, 3]
    finally:
        sys.modules.pop("hvdlite.compression.echo", None)


def test_the_bucket_memory_is_shared_by_its_tensors(make):
    flat = make(np.arange(6, dtype=np.float32))
    bucket = Bucket.of(flat, [("a", (2, 2)), ("b", (2,))], 0, 1)
    bucket.tensors[0].array[...] = 7
    assert ops(flat).to_numpy(flat).tolist() == [7, 7, 7, 7, 4, 5]


@every_compressor
def test_the_simulator_plays_a_rank_alone(name):
    flat = np.ones(3, np.float32)
    assert simulate([plain(name)], [Bucket.of(flat, [("w", (3,))], 0, 1)]).sent_bytes == [0]
