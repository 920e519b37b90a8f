"""Two comparisons side by side: where they agree, and in what the experiments differ."""

from __future__ import annotations

from .plan import Plan
from .result import ArmResult, Result
from .words import bounds, typeset


def compared(a: Result, b: Result) -> list[str]:
    """A line for each arm that both have, the verdicts first; then the arms that only one has.

    Intervals that do not meet are named; that they meet does not show that the two are alike.
    """
    first, second = ({arm.arm: arm for arm in each.arms if arm.judged is not None} for each in (a, b))
    lines = [_both(first[name], second[name], a.plan.metric if a.plan.metric == b.plan.metric else None) for name in first if name in second]
    lines += [f"{name}: only in the first" for name in first if name not in second]
    return lines + [f"{name}: only in the second" for name in second if name not in first]


def differences(a: Result, b: Result) -> list[str]:
    """Where two comparisons are not the same experiment, in words."""
    found = []
    for field in Plan.__dataclass_fields__:
        one, other = getattr(a.plan, field), getattr(b.plan, field)
        if one != other:
            found.append(f"{field}: {one!r} and {other!r}")
    for here, there in ((a.machine, b.machine), (a.job, b.job)):
        if here and there:
            found += [f"{key}: {here.get(key)} and {there.get(key)}" for key in sorted({*here, *there}) if here.get(key) != there.get(key)]
    return found + ([f"hvdlite: {a.version} and {b.version}"] if a.version != b.version else [])


def _both(a: ArmResult, b: ArmResult, metric: str | None) -> str:
    one, other = a.judged, b.judged
    assert one is not None
    assert other is not None
    verdicts = f"{one.verdict} in both" if one.verdict == other.verdict else f"{one.verdict} in the first, {other.verdict} in the second"
    parts = [f"{a.arm}: {verdicts}"]
    if one.time_ratio is not None and other.time_ratio is not None:
        first, second = one.time_ratio_interval, other.time_ratio_interval
        apart = first is not None and second is not None and (first.high < second.low or second.high < first.low)
        parts.append(
            f"step time {one.time_ratio:.3f} {bounds(first, '.3f')} and {other.time_ratio:.3f} {bounds(second, '.3f')} of the baseline's"
            + ", intervals that do not meet" * apart
        )
    if metric is not None and one.difference is not None and other.difference is not None:
        first, second = one.difference_interval, other.difference_interval
        apart = first is not None and second is not None and (first.high < second.low or second.high < first.low)
        parts.append(
            f"{metric} {typeset(one.difference, '+.3g')} {bounds(first, '+.3g')} and {typeset(other.difference, '+.3g')} {bounds(second, '+.3g')}"
            + ", intervals that do not meet" * apart
        )
    return "; ".join(parts)
