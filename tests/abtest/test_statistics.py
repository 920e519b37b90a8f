import itertools

import numpy as np
import pytest

from hvdlite.abtest.statistics import block_ratio, block_times, diverged, first_reached, grows, holm, interval, median_time, pairs_needed, sign_flip

pytest.importorskip("scipy")


def test_the_sign_flip_test_is_the_enumeration():
    d = np.array([0.3, -0.1, 0.8, 0.2, 0.5])
    means = [np.mean(np.multiply(signs, d)) for signs in itertools.product((1, -1), repeat=5)]
    assert sign_flip(d) == pytest.approx(np.mean(np.array(means) >= np.mean(d) - 1e-12))


@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_the_clearest_pairs_reach_two_to_the_minus_n(n):
    assert sign_flip(np.arange(1.0, n + 1)) == pytest.approx(2.0**-n)
    assert sign_flip(-np.arange(1.0, n + 1)) == 1.0
    assert sign_flip(np.zeros(n)) == 1.0


@pytest.mark.parametrize(("n", "method"), [(2, "t"), (5, "t"), (6, "BCa bootstrap"), (12, "BCa bootstrap")])
def test_an_interval_by_the_number_of_pairs(n, method):
    d = np.random.default_rng(n).normal(3, 1, n)
    found = interval(d)
    assert found.method == method
    assert found.low < np.mean(d) < found.high


def test_intervals_of_little():
    assert interval(np.array([1.0])) is None
    assert interval(np.empty(0)) is None
    same = interval(np.full(8, 0.25))
    assert (same.low, same.high, same.method) == (0.25, 0.25, "constant")


def test_the_t_interval_holds_as_often_as_it_says():
    rng = np.random.default_rng(0)
    draws = [interval(rng.normal(1, 1, 4)) for _ in range(400)]
    assert 0.86 < np.mean([i.low < 1 < i.high for i in draws]) < 0.94


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_more_arms_need_more_pairs():
    assert [pairs_needed(n) for n in (1, 2, 3, 4, 7)] == [6, 6, 6, 7, 8]
    for n in range(1, 9):
        assert holm({str(i): 2.0 ** -pairs_needed(n) for i in range(n)})["0"] <= 0.05


def test_blocks_leave_out_the_warm_up_and_count_steps():
    seconds = np.concatenate([np.arange(60) * 1.0, 60 + np.arange(200) * 0.1])
    times = block_times(np.arange(260), seconds)
    assert len(times) == 20
    assert times == pytest.approx(0.1)
    assert block_times([10, 20, 30], [1.0, 3.0, 5.0]) == pytest.approx(0.2)
    assert len(block_times([1], [1.0])) == len(block_times([], [])) == 0


def test_a_count_that_starts_anew_ends_the_blocks():
    assert block_times([1, 2, 3, 1, 2], [1, 2, 3, 50, 90]) == pytest.approx(1.0)


def test_the_ratio_of_blocks_covers_a_planted_one():
    rng = np.random.default_rng(1)
    found = block_ratio(1.2 * rng.lognormal(0, 0.05, 20), rng.lognormal(0, 0.05, 20))
    assert 1.1 < found.low < 1.2 < found.high < 1.3
    assert block_ratio(np.array([1.0]), np.array([1.0])) is None


def test_time_to_target_counts_runs_that_never_got_there():
    assert first_reached([1, 2, 3], [0.5, 0.2, 0.1], 0.2, higher_is_better=False) == 2
    assert first_reached([1, 2, 3], [0.5, 0.2, 0.1], 0.7, higher_is_better=True) is None
    assert median_time([3.0, 1.0, 2.0], [9.0] * 3) == 2.0
    assert median_time([3.0, None, 2.0], [9.0] * 3) == 3.0
    assert median_time([3.0, None, None], [9.0] * 3) is None
    assert median_time([None], [9.0]) is None


def test_divergence():
    baseline = np.array([0.30, 0.31, 0.29])
    assert diverged([0.5, float("nan")], baseline, higher_is_better=False)
    assert diverged([0.5, 2.0, 3.0, 4.0], baseline, higher_is_better=False)
    assert not diverged([0.5, 0.31, 0.3, 0.32], baseline, higher_is_better=False)
    assert not diverged([0.5, 2.0, 3.0, 4.0], baseline, higher_is_better=True)
    assert not diverged([], baseline, higher_is_better=False)


def noise(rng, count, memory=0.6):
    """Values that remember the last one, as residuals do."""
    found = [rng.normal()]
    for _ in range(count - 1):
        found.append(memory * found[-1] + rng.normal())
    return np.array(found)


def test_a_residual_that_grows_is_told_from_one_that_has_filled_up():
    rng, steps = np.random.default_rng(0), 1 + 20 * np.arange(40)
    assert all(grows(steps, (0.5 + steps / 200) * np.exp(0.1 * noise(rng, 40))) for _ in range(50))
    filled = [grows(steps, 3 * (1 - np.exp(-steps / 50)) * np.exp(0.1 * noise(rng, 40))) for _ in range(400)]
    assert np.mean(filled) <= 0.05
    assert not grows(steps, np.linspace(3, 1, 40))
    assert not grows(steps, np.zeros(40))
    assert not grows(steps, np.ones(40))
    assert not grows([1, 21, 41], [1.0, 10.0, 100.0]), "too few to tell"
    assert not grows([], [])
