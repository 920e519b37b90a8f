"""The statistics of a comparison, as pure functions on arrays.

The unit is the *pair*: a run of an arm and one of the baseline that share a seed, so that initial weights and order of data cancel. Each bound of an interval
holds with 95 %. Where chance can be enumerated it is: with n pairs there are 2^n ways to flip the signs of the differences (Fisher's test), so no p is
smaller than 2^-n, and few pairs prove nothing however clear they look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

LEVEL = 0.05
"""The share of false claims we accept, over all arms of one question together."""
FEWEST_PAIRS = 6
"""Below, no verdict is given."""
_FLIPS = 1 << 13  # up to 13 pairs every flip of signs is tried, beyond it so many at random
_RESAMPLES = 4999
_WARM_UP_STEPS = 60  # by then the size of buckets is chosen
_BLOCKS = 20


@dataclass(frozen=True)
class Interval:
    """Bounds that hold with 95 % each, and how they were found."""

    low: float
    high: float
    method: Literal["BCa bootstrap", "t", "bootstrap of blocks", "constant"]


def pairs_needed(num_arms: int) -> int:
    """Fewest pairs with which a claim about one of ``num_arms`` arms can be made at all: 2^-n must pass Holm's first step."""
    return max(FEWEST_PAIRS, math.ceil(math.log2(max(1, num_arms) / LEVEL)))


def sign_flip(differences: Vector) -> float:
    """p of "the differences are not above 0": the share of sign flips whose mean is as large; exact up to 13 pairs."""
    from scipy import stats

    if len(differences) < 2:
        return 1.0 if len(differences) == 0 or differences[0] <= 0 else 0.5
    found = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", alternative="greater", vectorized=True, n_resamples=_FLIPS, rng=np.random.default_rng(0)
    )
    return float(found.pvalue)


def interval(differences: Vector) -> Interval | None:
    """Of the mean: BCa bootstrap from six pairs on, Student's t below; None for a single pair, which says nothing about spread."""
    from scipy import stats

    if len(differences) < 2:
        return None
    if np.ptp(differences) <= 1e-12 * np.max(np.abs(differences)):
        return Interval(float(np.min(differences)), float(np.max(differences)), "constant")
    if len(differences) >= FEWEST_PAIRS:
        drawn = stats.bootstrap(
            (differences,), np.mean, confidence_level=1 - 2 * LEVEL, method="BCa", n_resamples=_RESAMPLES, rng=np.random.default_rng(0)
        ).confidence_interval
        if math.isfinite(drawn.low) and math.isfinite(drawn.high):
            return Interval(float(drawn.low), float(drawn.high), "BCa bootstrap")
    bounds = stats.ttest_1samp(differences, 0.0).confidence_interval(1 - 2 * LEVEL)
    return Interval(float(bounds.low), float(bounds.high), "t")


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p values, raised so that all claims below the level together are wrong with at most that probability (Holm 1979)."""
    adjusted, least = {}, 0.0
    for i, name in enumerate(sorted(p_values, key=lambda n: p_values[n])):
        least = max(least, min(1.0, (len(p_values) - i) * p_values[name]))
        adjusted[name] = least
    return adjusted


# --- Time ---------------------------------------------------------------------------------------------------------------------------


def after_warm_up(steps: Sequence[float]) -> tuple[int, int]:
    """The first and the last point to measure between: the first 60 steps are left out, half of them in short runs, and what follows a restart of the count.

    Returns:
        Two indices; the same one twice where there are fewer than two points.
    """
    at = np.asarray(steps, float)
    back = np.flatnonzero(np.diff(at) <= 0)
    if len(back):
        at = at[: back[0] + 1]
    if len(at) < 2:
        return 0, 0
    warm = int(np.searchsorted(at, at[0] + min(_WARM_UP_STEPS, (at[-1] - at[0]) / 2)))
    return min(warm, len(at) - 2), len(at) - 1


def block_times(steps: Sequence[float], seconds: Sequence[float]) -> Vector:
    """Seconds a step, in up to 20 blocks of consecutive steps, the warm-up left out.

    Args:
        steps, seconds: how many steps were done at which time, ascending. A restart of the count ends what is used.
    Returns:
        One number a block; empty if there are fewer than two points.
    """
    at, when = np.asarray(steps, float), np.asarray(seconds, float)
    warm, last = after_warm_up(steps)
    if warm >= last:
        return np.empty(0)
    edges = np.unique(np.linspace(warm, last, min(_BLOCKS, last - warm) + 1).astype(int))
    times: Vector = np.diff(when[edges]) / np.diff(at[edges])
    return times


def block_ratio(arm: Vector, baseline: Vector) -> Interval | None:
    """Of the ratio of median times in one pair of runs. Blocks of one run share its luck, so this says nothing about other runs."""
    from scipy import stats

    if len(arm) < 2 or len(baseline) < 2:
        return None

    def ratio(a: Vector, b: Vector, axis: int = -1) -> Vector:
        found: Vector = np.median(a, axis=axis) / np.median(b, axis=axis)
        return found

    drawn = stats.bootstrap(
        (arm, baseline), ratio, confidence_level=1 - 2 * LEVEL, method="percentile", n_resamples=_RESAMPLES, rng=np.random.default_rng(0)
    ).confidence_interval
    return Interval(float(drawn.low), float(drawn.high), "bootstrap of blocks")


def first_reached(seconds: Sequence[float], values: Sequence[float], target: float, higher_is_better: bool) -> float | None:
    """When a metric first was at the target; None if never."""
    for when, value in zip(seconds, values, strict=True):
        if (value >= target) if higher_is_better else (value <= target):
            return when
    return None


def median_time(reached: Sequence[float | None], watched: Sequence[float]) -> float | None:
    """Median of times to a target; a run that never got there counts as longer than it was ``watched`` (Kaplan-Meier).

    Returns:
        None if the median lies beyond what was watched.
    """
    from scipy import stats

    if not reached:
        return None
    times = [end if when is None else when for when, end in zip(reached, watched, strict=True)]
    censored = np.array([when is None for when in reached])
    if censored.all():
        return None
    at = np.asarray(times, float)
    survival = stats.ecdf(stats.CensoredData(uncensored=at[~censored], right=at[censored])).sf
    below = np.flatnonzero(survival.probabilities <= 0.5)
    return float(survival.quantiles[below[0]]) if len(below) else None


def grows(steps: Sequence[float], ratios: Sequence[float]) -> bool:
    """Whether a residual, over the gradient, goes on growing after the first third, in which it fills up.

    Two witnesses: Kendall's rank correlation with the step at the 1 % level, and a slope (Theil & Sen, of the logarithm) that makes it half as large again over
    what was watched. Fewer than eight points tell nothing.
    """
    from scipy import stats

    at, ratio = np.asarray(steps, float), np.asarray(ratios, float)
    late = (at > at[0] + (at[-1] - at[0]) / 3) & (ratio > 0) & np.isfinite(ratio) if len(at) else np.zeros(0, bool)
    if np.count_nonzero(late) < 8:
        return False
    at, logarithm = at[late], np.log(ratio[late])
    if np.ptp(logarithm) == 0:
        return False
    slope = stats.theilslopes(logarithm, at).slope
    return bool(stats.kendalltau(at, logarithm, alternative="greater").pvalue < 0.01 and slope * (at[-1] - at[0]) > math.log(1.5))


def diverged(values: Sequence[float], baseline_final: Vector, higher_is_better: bool) -> bool:
    """Whether a curve ended at no finite value, or its last three at more than 5 standard deviations and 10 % on the bad side of the baseline's final ones."""
    last = np.asarray(values[-3:], float)
    if not len(last):
        return False
    if not np.isfinite(last[-1]):
        return True
    final = baseline_final[np.isfinite(baseline_final)]
    if len(final) < 2 or len(last) < 3:
        return False
    bad = (np.mean(final) - last) if higher_is_better else (last - np.mean(final))
    return bool(np.all(bad > max(5 * np.std(final, ddof=1), 0.1 * abs(float(np.mean(final))))))
