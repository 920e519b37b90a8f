"""A planted truth comes out right."""

import numpy as np
import pytest

from hvdlite.abtest.verdict import Pairs, default_margin, judge

pytest.importorskip("scipy")


def experiment(rng, arms, seeds, *, noise=0.3, jitter=0.03):
    """Runs of arms, each ``(bias of its metric, factor of its time)``, beside one baseline: seeds matter, and so does the luck of a run."""
    level = rng.normal(95, 0.5, seeds)
    baseline = level + rng.normal(0, noise, seeds)
    seconds = 0.02 * rng.lognormal(0, jitter, seeds)
    return {
        name: Pairs(level + bias + rng.normal(0, noise, seeds), baseline, 0.02 * factor * rng.lognormal(0, jitter, seeds), seconds)
        for name, (bias, factor) in arms.items()
    }


def judged(arm, seeds=8, margin=1.0, seed=0, **others):
    pairs = experiment(np.random.default_rng(seed), {"arm": arm, **others}, seeds)
    return judge(pairs, higher_is_better=True, margin=margin)["arm"]


@pytest.mark.parametrize(
    ("arm", "verdict", "harm"),
    [
        ((0.0, 0.7), "faster and not worse", "not worse"),
        ((-3.0, 0.7), "faster but worse", "worse"),
        ((0.0, 1.4), "slower", "not worse"),
        ((-3.0, 1.4), "slower", "worse"),
        ((0.0, 1.0), "undecided", "not worse"),
        ((-3.0, 1.0), "undecided", "worse"),
    ],
)
def test_what_is_planted_is_found(arm, verdict, harm):
    for seed in range(5):
        found = judged(arm, seed=seed)
        assert (found.verdict, found.harm) == (verdict, harm), found
        assert not found.underpowered
        assert "underpowered" not in found.words


def test_lower_may_be_better():
    pairs = Pairs(np.linspace(0.5, 0.6, 6), np.linspace(0.2, 0.29, 6), np.ones(6) * np.linspace(1, 1.1, 6), np.full(6, 2.0))
    assert judge({"a": pairs}, higher_is_better=False, margin=0.01)["a"].verdict == "faster but worse"
    assert judge({"a": pairs}, higher_is_better=True, margin=0.01)["a"].verdict == "faster and not worse"


def test_equal_arms_are_called_faster_slower_or_worse_by_chance_only():
    """400 experiments with two arms that are the baseline again: over both arms together, at most 5 % wrong claims of each kind."""
    rng = np.random.default_rng(2)
    faster = slower = worse = 0
    not_worse = []
    for _ in range(400):
        found = judge(experiment(rng, {"a": (0, 1), "b": (0, 1)}, 7), higher_is_better=True, margin=1.0).values()
        faster += any(j.speed == "faster" for j in found)
        slower += any(j.speed == "slower" for j in found)
        worse += any(j.harm == "worse" for j in found)
        not_worse += [j.harm == "not worse" for j in found]
    assert max(faster, slower, worse) <= 20, (faster, slower, worse)
    assert np.mean(not_worse) > 0.9


def test_an_arm_at_the_margin_is_called_not_worse_by_chance_only():
    rng = np.random.default_rng(3)
    wrong = sum(judge(experiment(rng, {"a": (-1.0, 1)}, 7), higher_is_better=True, margin=1.0)["a"].harm == "not worse" for _ in range(400))
    assert wrong <= 20


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_few_seeds_are_underpowered_however_clear(seeds):
    found = judged((-3.0, 0.5), seeds)
    assert found.verdict == "undecided"
    assert found.underpowered
    assert f"underpowered: {seeds} pair{'s' * (seeds > 1)} of runs, 6 are needed" in found.words
    assert found.time_ratio == pytest.approx(0.5, rel=0.15)
    assert (found.difference_interval is None) == (seeds == 1)


def test_more_arms_need_more_seeds():
    others = {str(i): (0.0, 1.0) for i in range(3)}
    assert judged((0.0, 0.5), 6).verdict == "faster and not worse"
    assert judged((0.0, 0.5), 6, **others).underpowered
    assert judged((0.0, 0.5), 7, **others).verdict == "faster and not worse"


def test_runs_without_figures_are_no_pairs():
    pairs = experiment(np.random.default_rng(0), {"a": (0, 0.5)}, 7)["a"]
    pairs.arm_metric[:3] = np.nan
    found = judge({"a": pairs}, higher_is_better=True, margin=1.0)["a"]
    assert (found.num_pairs, found.num_timed_pairs, found.underpowered) == (4, 7, True)
    assert found.words == "undecided (underpowered: 4 pairs with a metric, 7 with step times, 6 are needed; faster)"


def test_an_arm_that_diverges_is_worse():
    pairs = experiment(np.random.default_rng(0), {"a": (0, 0.5)}, 7)["a"]
    pairs.arm_metric[:2] = np.nan
    found = judge(
        {"a": Pairs(pairs.arm_metric, pairs.baseline_metric, pairs.arm_seconds, pairs.baseline_seconds, num_diverged=2)}, higher_is_better=True, margin=1
    )
    assert found["a"].words == "faster but worse (2 runs diverged)"


def test_nothing_at_all_is_undecided():
    none = np.full(6, np.nan)
    found = judge({"a": Pairs(none, none, none, none)}, higher_is_better=True, margin=0.0)["a"]
    assert (found.verdict, found.difference, found.time_ratio) == ("undecided", None, None)


def test_the_default_margin_is_a_rule():
    assert default_margin(np.array([90.0, 90.0, np.nan])) == pytest.approx(0.45)
    assert default_margin(np.array([80.0, 100.0])) == pytest.approx(np.std([80, 100], ddof=1))
    assert default_margin(np.array([np.nan])) == 0


def test_an_arm_with_a_bias_added_to_its_gradients_is_called_worse():
    """Gradient descent on a noisy quadratic: the arms of a seed start alike and draw the same noise."""

    def final_loss(seed, bias):
        rng = np.random.default_rng(seed)
        weights = rng.normal(size=50)
        for _ in range(60):
            weights -= 0.2 * (weights + 0.3 * rng.normal(size=50) + bias)
        return float(np.mean(weights**2))

    baseline = np.array([final_loss(seed, 0.0) for seed in range(8)])
    arms = {name: np.array([final_loss(seed, bias) for seed in range(8)]) for name, bias in (("biased", 0.2), ("same", 0.0))}
    pairs = {name: Pairs(values, baseline, np.ones(8) * np.linspace(1, 1.1, 8), np.linspace(1, 1.1, 8)) for name, values in arms.items()}
    found = judge(pairs, higher_is_better=False, margin=default_margin(baseline))
    assert (found["biased"].harm, found["biased"].speed) == ("worse", "unclear")
    assert (found["same"].harm, found["same"].speed) == ("not worse", "unclear")
