"""What to do with the answer, in one line, with the setting to paste."""

from __future__ import annotations

from dataclasses import dataclass

from .. import settings
from .result import ArmResult, Result
from .statistics import pairs_needed


@dataclass(frozen=True)
class Recommendation:
    """What to do. ``setting`` is what to paste: a variable of the environment, or an option of ``hvdlite ab``."""

    words: str
    setting: str


def recommend(result: Result) -> Recommendation:
    """The fastest arm of those that are faster and not worse; the baseline where there is none; more seeds where nothing could be shown."""
    plan, judged = result.plan, [(arm, arm.judged) for arm in result.arms if arm.judged is not None]
    good = [(verdict.time_ratio, arm) for arm, verdict in judged if verdict.verdict == "faster and not worse" and verdict.time_ratio is not None]
    if good:
        ratio, best = min(good, key=lambda pair: pair[0])
        return Recommendation(f"use {best.arm}: a step takes {ratio:.2f} of the time with {plan.baseline}, and {plan.metric} is not worse", _setting(best))
    weak = [arm.arm for arm, verdict in judged if verdict.underpowered]
    if len(weak) == len(judged):
        needed = pairs_needed(len(judged))
        if plan.seeds >= needed:
            return Recommendation("not yet: too many runs are missing to show anything; run them", "--resume")
        return Recommendation(f"not yet: {needed} seeds are needed to show anything, and there were {plan.seeds}", f"--seeds {needed}")
    words = f"stay with {plan.baseline}: nothing is shown to be faster and not worse"
    costly = [arm.arm for arm, verdict in judged if verdict.verdict == "faster but worse"]
    unknown = [arm.arm for arm, verdict in judged if verdict.verdict == "undecided" and verdict.harm != "worse"]
    if costly:
        words += f"; {' and '.join(costly)} would be faster at a cost in {plan.metric}"
    if unknown:
        words += f"; more seeds may decide on {' and '.join(unknown)}"
    return Recommendation(words, _setting(result.arms[0]))


def _setting(arm: ArmResult) -> str:
    return f"{settings.env_name('compression')}={arm.arm}"
