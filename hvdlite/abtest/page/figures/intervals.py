"""How sure the two claims are: by how much slower or faster, by how much better or worse."""

from __future__ import annotations

from collections.abc import Sequence

from ...result import ArmResult, Result
from ...statistics import Interval
from ...words import bounds, typeset
from ._drawing import GOOD, INK, Rows, colour
from ._picture import Picture


def time(result: Result) -> Picture | None:
    """Step time of each arm over the baseline's."""
    plan = result.plan
    arms = [(i, a, a.judged.time_ratio, a.judged.time_ratio_interval) for i, a in enumerate(result.arms) if a.judged and a.judged.time_ratio is not None]
    if not arms:
        return None
    rows = _rows(arms, ".3f", zero=1.0)
    rows.axes.set_xlabel(f"step time, as a share of {plan.baseline}'s (further left is faster)")
    said = "; ".join(f"{arm.arm} {value:.3f} {bounds(interval, '.3f')}" for _, arm, value, interval in arms)
    caption = (
        f"Each point is the geometric mean of the ratios of pairs with the same seed; the line is its interval, each end of which holds with 95 %. "
        f"A line that reaches the upright at 1 leaves it open whether the arm is faster or slower than {plan.baseline}; beside it, the exact test must agree."
    )
    return Picture("Step time", caption, rows.svg("time", "Step time ratio of each arm with its interval", said))


def metric(result: Result) -> Picture | None:
    """Difference of each arm's metric from the baseline's, and the margin."""
    plan = result.plan
    arms = [(i, a, a.judged.difference, a.judged.difference_interval) for i, a in enumerate(result.arms) if a.judged and a.judged.difference is not None]
    if not arms:
        return None
    limit = -result.margin if plan.higher_is_better else result.margin
    rows = _rows(arms, "+.3g", zero=0.0, also=limit)
    low, high = rows.axes.get_xlim()
    rows.axes.axvspan(limit, high if plan.higher_is_better else low, color=GOOD, lw=0, zorder=0)
    rows.axes.set_xlim(low, high)
    better = "right" if plan.higher_is_better else "left"
    rows.axes.set_xlabel(f"{plan.metric}, difference from {plan.baseline} (further {better} is better)")
    said = "; ".join(f"{arm.arm} {typeset(value, '+.3g')} {bounds(interval, '+.3g')}" for _, arm, value, interval in arms) + f"; margin {result.margin:.4g}"
    caption = (
        "Mean of the differences of pairs with the same seed, and its interval. A line that lies whole in the shaded zone is not worse: "
        f"by less than the margin of {result.margin:.4g}. One that lies whole on the bad side of 0 is worse. In both cases the exact test must agree."
    )
    return Picture(f"Difference in {plan.metric}", caption, rows.svg("metric", f"Difference in {plan.metric} of each arm with its interval", said))


def _rows(arms: Sequence[tuple[int, ArmResult, float, Interval | None]], form: str, *, zero: float, also: float | None = None) -> Rows:
    rows = Rows([arm.arm for _, arm, _, _ in arms])
    ends = [zero] + ([also] if also is not None else [])
    for row, (index, _, value, interval) in enumerate(arms):
        if interval is not None:
            rows.axes.plot([interval.low, interval.high], [row, row], color=colour(index), lw=3, solid_capstyle="round", alpha=0.55)
            ends += [interval.low, interval.high]
        rows.axes.plot([value], [row], "o", color=colour(index), ms=9)
        rows.axes.plot([zero, zero], [row - 0.16, row + 0.3], color=INK, lw=1.2)  # not through the names
        rows.write_right(row, typeset(value, form) + (f" {bounds(interval, form)}" if interval else ""))
        ends.append(value)
    room = 0.08 * ((max(ends) - min(ends)) or abs(zero) or 1.0)
    rows.axes.set_xlim(min(ends) - room, max(ends) + room)
    return rows
