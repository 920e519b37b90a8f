"""When each run first was at the target."""

from __future__ import annotations

from ...result import Result
from ._drawing import INK, Rows, colour
from ._picture import Picture


def times(result: Result) -> Picture | None:
    """A point a run; an open triangle where it was watched for so long and never got there."""
    arms = [arm for arm in result.arms if arm.num_reached is not None]
    if result.target is None or not arms:
        return None
    rows = Rows([arm.arm for arm in arms])
    for row, arm in enumerate(arms):
        runs = [run for run in result.runs if run.arm == arm.arm and not run.problem]
        index = result.plan.arms.index(arm.arm)
        reached = [run.target_seconds for run in runs if run.target_seconds is not None]
        never = [run.watched_seconds for run in runs if run.target_seconds is None and run.watched_seconds is not None]
        rows.axes.plot(reached, [row] * len(reached), "o", color=colour(index), ms=8, alpha=0.6, mec="none")
        rows.axes.plot(never, [row] * len(never), ">", mfc="none", mec=colour(index), ms=8, mew=1.5)
        if arm.target_seconds is not None:
            rows.axes.plot([arm.target_seconds] * 2, [row - 0.2, row + 0.2], color=INK, lw=2)
        median = f"{arm.target_seconds:.1f} s" if arm.target_seconds is not None else "no median"
        rows.write_right(row, f"{median}, {arm.num_reached} of {arm.num_good} got there")
    rows.axes.set_xlim(left=0)
    rows.axes.set_xlabel(f"seconds until {result.plan.metric} was {result.target:.5g}")
    said = "; ".join(f"{arm.arm}: {arm.num_reached} of {arm.num_good} runs, median {arm.target_seconds or 0:.1f} s" for arm in arms)
    caption = (
        f"A filled point is a run that got to {result.plan.metric} {result.target:.5g}, an open triangle one that was watched until then and did not. "
        "The upright is the median, in which the latter count as longer (Kaplan-Meier)."
    )
    return Picture("Time to target", caption, rows.svg("target", f"Seconds until {result.plan.metric} reached {result.target:.5g}, by run", said))
