"""What changed during training: metrics and fidelity over steps and over time, means of the seeds with their range."""

from __future__ import annotations

from matplotlib.ticker import LogLocator, NullLocator

from ...curves import Band, Curve, band
from ...result import Result
from ._drawing import Drawing, colour, dashes
from ._picture import Picture

MOST_METRICS = 4
_LOG_FROM = 8  # largest over smallest value, from which a metric is drawn over powers of ten


def curves(result: Result) -> list[Picture | None]:
    """Two figures for each metric that was reported more than once: over steps, and over time."""
    metrics = dict.fromkeys([result.plan.metric, *(curve.metric for curve in result.curves)])
    names = [(f"curve{number}", metric) for number, metric in enumerate(list(metrics)[:MOST_METRICS])]
    return [_over(result, _shown(result, result.curves, metric), name, over_time=over_time) for name, metric in names for over_time in (False, True)]


def fidelity(result: Result) -> list[Picture | None]:
    """A figure for each measure of how far what was applied is from the exact mean gradient; over steps."""
    measures = dict.fromkeys(curve.metric for curve in result.fidelity)
    names = [(f"fidelity{number}", measure) for number, measure in enumerate(measures)]
    return [_over(result, _shown(result, result.fidelity, measure), name, over_time=False) for name, measure in names]


def _shown(result: Result, of: list[Curve], metric: str) -> list[Curve]:
    left_out = {(row.arm, row.seed) for row in result.runs if row.diverged}
    return [curve for curve in of if curve.metric == metric and (curve.arm, curve.seed) not in left_out]


def _over(result: Result, shown: list[Curve], name: str, *, over_time: bool) -> Picture | None:
    found = [(i, band([c for c in shown if c.arm == arm], over_time=over_time)) for i, arm in enumerate(result.plan.arms)]
    bands = [(i, each) for i, each in found if each is not None]
    if not bands:
        return None
    drawing = Drawing(270)
    for i, each in reversed(bands):  # the baseline on top
        drawing.axes.fill_between(each.at, each.low, each.high, color=colour(i), alpha=0.12, lw=0)
        mark = {"marker": "o", "ms": 4} if len(each.at) <= 12 else {}
        drawing.axes.plot(each.at, each.mean, color=colour(i), lw=1.8, ls=dashes(i), **mark)
    low, high = min(each.mean.min() for _, each in bands), max(each.mean.max() for _, each in bands)
    if low > 0 and high / low > _LOG_FROM:
        drawing.axes.set_yscale("log")
        drawing.axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        drawing.axes.yaxis.set_major_formatter("{x:g}")
        drawing.axes.yaxis.set_minor_locator(NullLocator())
    drawing.axes.set_xlabel("seconds since the first report" if over_time else "step")
    metric, across = shown[0].metric, "over time" if over_time else "over steps"
    said = "; ".join(f"{each.arm} from {each.mean[0]:.4g} to {each.mean[-1]:.4g}" for _, each in bands)
    svg = drawing.svg(name + "st"[over_time], f"{metric} {across}, by arm", said)
    return Picture(f"{metric} {across}", _caption(result, shown, bands, over_time=over_time), svg, has_key=True)


def _caption(result: Result, shown: list[Curve], bands: list[tuple[int, Band]], *, over_time: bool) -> str:
    runs = {each.num_runs for _, each in bands}
    span = f"{min(runs)}{f' to {max(runs)}' if len(runs) > 1 else ''}"
    several = f"Mean of the runs, rank 0's values; the band is from the lowest to the highest of {span} runs."
    parts = [several if max(runs) > 1 else "One run an arm; rank 0's values."]
    if over_time and max(runs) > 1:
        parts.append("It ends where the first run of the arm ended.")
    most = max(curve.points_per_value for curve in shown)
    if most > 1:
        parts.append(f"Means of up to {most} reports a point.")
    diverged = sum(row.diverged for row in result.runs)
    if diverged:
        parts.append(f"{diverged} run{'s' * (diverged > 1)} that diverged {'are' if diverged > 1 else 'is'} left out.")
    return " ".join(parts)
