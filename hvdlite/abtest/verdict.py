"""What the pairs of an arm and the baseline allow to be said: four verdicts, in words first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .statistics import LEVEL, Interval, Vector, block_ratio, holm, interval, pairs_needed, sign_flip

Speed = Literal["faster", "slower", "unclear"]
Harm = Literal["not worse", "worse", "unclear"]
Verdict = Literal["faster and not worse", "faster but worse", "slower", "undecided"]

_DEFAULT_MARGIN_SHARE = 0.005  # of the baseline's mean


@dataclass(frozen=True)
class Pairs:
    """An arm beside the baseline, seed by seed. A figure is nan where one of the two runs has none."""

    arm_metric: Vector
    baseline_metric: Vector
    arm_seconds: Vector
    """A step's, median of the blocks of each run."""
    baseline_seconds: Vector
    num_diverged: int = 0
    """Runs of the arm that diverged where the baseline's did not."""
    arm_blocks: Vector | None = None
    """Times of the blocks in the one pair there is, to say something about a single one."""
    baseline_blocks: Vector | None = None


@dataclass(frozen=True)
class Judged:
    """The verdict on an arm, and what it rests on."""

    verdict: Verdict
    words: str
    speed: Speed
    harm: Harm
    underpowered: bool
    num_pairs: int
    """With both metrics."""
    num_timed_pairs: int
    margin: float
    """By how much the metric may be worse and still count as not worse."""
    difference: float | None
    """Mean of arm - baseline, in units of the metric."""
    difference_interval: Interval | None
    time_ratio: float | None
    """A step of the arm over one of the baseline, geometric mean over the pairs."""
    time_ratio_interval: Interval | None
    p_not_worse: float
    p_worse: float
    p_faster: float
    p_slower: float
    """p values after Holm, over the arms."""


def default_margin(baseline: Vector) -> float:
    """The larger of one standard deviation over the seeds and 0.5 % of the mean: a rule fixed before the run."""
    final = baseline[np.isfinite(baseline)]
    if not len(final):
        return 0.0
    spread = float(np.std(final, ddof=1)) if len(final) > 1 else 0.0
    return max(spread, _DEFAULT_MARGIN_SHARE * abs(float(np.mean(final))))


def judge(arms: Mapping[str, Pairs], *, higher_is_better: bool, margin: float) -> dict[str, Judged]:
    """The verdict on every arm. A claim needs two witnesses: the exact test after Holm over the arms, and the interval."""
    sign = 1.0 if higher_is_better else -1.0
    gains = {name: sign * _finite(pairs.arm_metric - pairs.baseline_metric) for name, pairs in arms.items()}
    ratios = {name: _finite(np.log(pairs.arm_seconds / pairs.baseline_seconds)) for name, pairs in arms.items()}
    tests = {
        "not worse": holm({name: sign_flip(gain + margin) for name, gain in gains.items()}),
        "worse": holm({name: sign_flip(-gain) for name, gain in gains.items()}),
        "faster": holm({name: sign_flip(-ratio) for name, ratio in ratios.items()}),
        "slower": holm({name: sign_flip(ratio) for name, ratio in ratios.items()}),
    }
    needed = pairs_needed(len(arms))
    return {
        name: _judge_one(pairs, sign * gains[name], ratios[name], {claim: p[name] for claim, p in tests.items()}, sign, margin, needed)
        for name, pairs in arms.items()
    }


def _judge_one(pairs: Pairs, differences: Vector, ratios: Vector, p: Mapping[str, float], sign: float, margin: float, needed: int) -> Judged:
    bounds, log_bounds = interval(differences), interval(ratios)
    harm = _harm(differences, bounds, p, sign, margin, needed)
    if pairs.num_diverged and len(differences) + pairs.num_diverged >= needed:
        harm = "worse"
    speed = _speed(ratios, log_bounds, p, needed)
    time_bounds = Interval(math.exp(log_bounds.low), math.exp(log_bounds.high), log_bounds.method) if log_bounds else None
    if time_bounds is None and pairs.arm_blocks is not None and pairs.baseline_blocks is not None:
        time_bounds = block_ratio(pairs.arm_blocks, pairs.baseline_blocks)
    verdict: Verdict = "slower" if speed == "slower" else "undecided"
    if speed == "faster" and harm != "unclear":
        verdict = "faster and not worse" if harm == "not worse" else "faster but worse"
    underpowered = min(len(differences) + pairs.num_diverged, len(ratios)) < needed
    return Judged(
        verdict=verdict,
        words=_words(verdict, speed, harm, pairs, len(differences), len(ratios), needed),
        speed=speed,
        harm=harm,
        underpowered=underpowered,
        num_pairs=len(differences),
        num_timed_pairs=len(ratios),
        margin=margin,
        difference=float(np.mean(differences)) if len(differences) else None,
        difference_interval=bounds,
        time_ratio=math.exp(float(np.mean(ratios))) if len(ratios) else None,
        time_ratio_interval=time_bounds,
        p_not_worse=p["not worse"],
        p_worse=p["worse"],
        p_faster=p["faster"],
        p_slower=p["slower"],
    )


def _harm(differences: Vector, bounds: Interval | None, p: Mapping[str, float], sign: float, margin: float, needed: int) -> Harm:
    if bounds is None or len(differences) < needed:
        return "unclear"
    low, high = sorted((sign * bounds.low, sign * bounds.high))
    if p["not worse"] <= LEVEL and low > -margin:
        return "not worse"
    return "worse" if p["worse"] <= LEVEL and high < 0 else "unclear"


def _speed(ratios: Vector, bounds: Interval | None, p: Mapping[str, float], needed: int) -> Speed:
    if bounds is None or len(ratios) < needed:
        return "unclear"
    if p["faster"] <= LEVEL and bounds.high < 0:
        return "faster"
    return "slower" if p["slower"] <= LEVEL and bounds.low > 0 else "unclear"


def _words(verdict: Verdict, speed: Speed, harm: Harm, pairs: Pairs, num_pairs: int, num_timed: int, needed: int) -> str:
    parts: list[str] = []
    underpowered = num_pairs + pairs.num_diverged < needed or num_timed < needed
    if underpowered:
        counted = (
            f"{num_pairs} pair{'s' * (num_pairs != 1)} of runs" if num_pairs == num_timed else f"{num_pairs} pairs with a metric, {num_timed} with step times"
        )
        parts.append(f"underpowered: {counted}, {needed} are needed")
    if verdict == "undecided" and not (underpowered and speed == "unclear"):
        parts.append("neither faster nor slower is shown" if speed == "unclear" else speed)
    if verdict in ("undecided", "slower") and not (underpowered and harm == "unclear"):
        parts.append("neither worse nor not worse is shown" if harm == "unclear" else harm)
    if pairs.num_diverged:
        parts.append(f"{pairs.num_diverged} run{'s' * (pairs.num_diverged > 1)} diverged")
    return f"{verdict} ({'; '.join(parts)})" if parts else verdict


def _finite(values: Vector) -> Vector:
    found: Vector = values[np.isfinite(values)]
    return found
