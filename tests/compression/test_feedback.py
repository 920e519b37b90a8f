"""Error feedback: nothing is lost, wherever the residuals are moved."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from hvdlite.compression import AllReduce, Compressor, Dense, ErrorFeedback, load


@dataclass
class Half(Compressor):
    """Sends half of everything, and remembers what it was told."""

    told: list = field(default_factory=list)

    def exchange(self, bucket):
        sent = bucket.flat / 2
        total = yield AllReduce(sent)
        return total / bucket.num_ranks, Dense(lambda: sent)

    def wire_bytes(self, shapes, num_ranks):
        return 42

    def accepts(self, shape):
        return shape == (3,)

    def check(self, shapes):
        self.told.append(("check", shapes))

    def state_dict(self):
        return {"inner": {"counter": np.ones(1)}}

    def load_state_dict(self, state):
        self.told.append(("load", state))

    def rescale(self, factor):
        self.told.append(("rescale", factor))

    def flush(self):
        self.told.append(("flush",))


A, B = ("a", (2, 2)), ("b", (3,))


def residuals(compressor: ErrorFeedback) -> dict[str, list[float]]:
    return {name: q["residual"].reshape(-1).tolist() for name, q in compressor.state_dict().items() if "residual" in q}


def ones(size: int) -> np.ndarray:
    return np.ones(size, np.float32)


def test_what_was_held_back_is_added_next_time(make, play):
    compressor = ErrorFeedback(Half())
    assert [play([compressor], [ones(3)], [B], make).mean[0] for _ in range(4)] == [0.5, 0.75, 0.875, 0.9375]


def test_every_rank_has_its_own(make, play):
    pair = [ErrorFeedback(Half()), ErrorFeedback(Half())]
    play(pair, [ones(3), 3 * ones(3)], [B], make)
    assert [residuals(c)["b"][0] for c in pair] == [0.5, 1.5]


def test_residuals_follow_the_name(make, play):
    compressor = ErrorFeedback(Half())
    play([compressor], [np.concatenate([ones(4), 10 * ones(3)])], [A, B], make)
    assert play([compressor], [np.zeros(7, np.float32)], [B, A], make).mean.tolist() == [2.5] * 3 + [0.25] * 4
    assert play([compressor], [np.zeros(4, np.float32)], [A], make).mean.tolist() == [0.125] * 4
    assert play([compressor], [np.zeros(3, np.float32)], [B], make).mean.tolist() == [1.25] * 3


def test_a_parameter_of_another_shape_starts_from_zero(make, play):
    compressor = ErrorFeedback(Half())
    play([compressor], [ones(3)], [B], make)
    assert play([compressor], [np.zeros(4, np.float32)], [("b", (4,))], make).mean.tolist() == [0] * 4


def test_rescaling_reaches_residuals_whose_bucket_is_gone(make, play):
    compressor = ErrorFeedback(Half())
    play([compressor], [ones(7)], [A, B], make)
    play([compressor], [ones(4)], [A], make)  # lays a anew; b waits in what is left of the old bucket
    compressor.rescale(4.0)
    assert residuals(compressor) == {"a": [3.0] * 4, "b": [2.0] * 3}
    assert compressor.inner.told == [("rescale", 4.0)]


def test_rescaling_reaches_residuals_that_were_only_loaded(play):
    compressor = ErrorFeedback(Half())
    compressor.load_state_dict({"b": {"residual": ones(3)}})
    compressor.rescale(0.5)
    assert residuals(compressor) == {"b": [0.5] * 3}


def test_loading_forgets_what_was_there(make, play):
    compressor = ErrorFeedback(Half())
    play([compressor], [ones(7)], [A, B], make)
    compressor.load_state_dict({"b": {"residual": 4 * ones(3), "counter": ones(1)}})
    assert compressor.inner.told == [("load", {"b": {"counter": ones(1)}})]
    assert play([compressor], [np.zeros(7, np.float32)], [A, B], make).mean.tolist() == [0] * 4 + [2] * 3


def test_the_loaded_arrays_stay_the_callers(make, play):
    mine = ones(3)
    compressor = ErrorFeedback(Half())
    compressor.load_state_dict({"b": {"residual": mine}})
    compressor.rescale(2.0)
    play([compressor], [ones(3)], [B], make)
    assert mine.tolist() == [1, 1, 1]


def test_a_flush_is_dense_once_a_bucket(make, play):
    compressor = ErrorFeedback(Half())
    for layer, size in ((A, 4), (B, 3)):
        play([compressor], [ones(size)], [layer], make)
    compressor.flush()
    assert compressor.inner.told == [("flush",)]
    assert play([compressor], [ones(4)], [A], make).mean.tolist() == [1.5] * 4
    assert play([compressor], [ones(4)], [A], make).mean.tolist() == [0.5] * 4
    assert play([compressor], [ones(3)], [B], make).mean.tolist() == [1.5] * 3
    assert residuals(compressor) == {"a": [0.5] * 4, "b": [0.0] * 3}


def test_the_state_holds_both(play):
    compressor = ErrorFeedback(Half())
    play([compressor], [ones(3)], [B])
    assert {name: set(q) for name, q in compressor.state_dict().items()} == {"inner": {"counter"}, "b": {"residual"}}


def test_the_rest_is_the_inner_compressors():
    compressor = ErrorFeedback(Half())
    compressor.check({"b": (3,)})
    assert compressor.inner.told == [("check", {"b": (3,)})]
    assert compressor.wire_bytes([(3,)], 2) == 42
    assert compressor.accepts((3,))
    assert not compressor.accepts((4,))


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_in_the_way_of_the_result(in_place, make, play):
    compressor = ErrorFeedback(Half())
    for expected in (0.5, 0.75):
        assert play([compressor], [ones(3)], [B], make, in_place=in_place).mean.tolist() == [expected] * 3


@pytest.mark.parametrize("spec", ["powersgd:rank=2", "int8", "int4", "sign", "fp16:feedback=true"])
def test_subtracting_later_gives_the_same_bits(spec, make, play):
    """A residual that was looked at between the steps, and so brought up to date, is the one that was folded into the next gradient."""
    layers = [("a", (64, 48)), ("b", (40, 33)), ("c", (7,))]
    steps = [[np.random.default_rng(10 * t + r).standard_normal(64 * 48 + 40 * 33 + 7).astype(np.float32) for r in range(2)] for t in range(4)]
    late, at_once = ([load(spec) for _ in range(2)] for _ in range(2))
    for flats in steps:
        a, b = play(late, flats, layers, make), play(at_once, flats, layers, make)
        assert a.mean.tobytes() == b.mean.tobytes()
        for compressor in at_once:
            compressor.state_dict()
    for x, y in zip(late, at_once, strict=True):
        assert residuals(x) == residuals(y)
