"""What is gained for what: time against the metric."""

from __future__ import annotations

from ...result import ArmResult, Result
from ._drawing import MUTED, Drawing, colour, marker
from ._picture import Picture

_LETTER, _LINE = 6.2, 13.0  # of a label, in units of the SVG


def front(arms: list[tuple[float, float]], *, higher_is_better: bool) -> list[int]:
    """Places of the arms that no other beats in time and metric at once, fastest first.

    Args:
        arms: ``(step time, metric)`` of each.
    """
    sign = 1.0 if higher_is_better else -1.0
    best, found = float("-inf"), []
    for i in sorted(range(len(arms)), key=lambda i: (arms[i][0], -sign * arms[i][1])):
        if sign * arms[i][1] > best:
            best = sign * arms[i][1]
            found.append(i)
    return found


def tradeoff(result: Result) -> Picture | None:
    """A point an arm, and the front of those that no other arm beats in both."""
    plan = result.plan
    arms = [(i, a, (a.step_ms, a.metric_mean)) for i, a in enumerate(result.arms) if a.step_ms is not None and a.metric_mean is not None]
    if not arms:
        return None
    points = [(step, metric) for _, _, (step, metric) in arms if step is not None and metric is not None]
    best = front(points, higher_is_better=plan.higher_is_better)
    drawing = Drawing(300)
    axes = drawing.axes
    axes.plot([points[i][0] for i in best], [points[i][1] for i in best], color=MUTED, lw=1.2, ls=(0, (3, 3)), zorder=1)
    for (index, arm, _), (step, metric) in zip(arms, points, strict=True):
        axes.errorbar([step], [metric], yerr=arm.metric_sd, fmt=marker(index), color=colour(index), ms=9, elinewidth=1.4, alpha=0.95)
    axes.margins(0.16, 0.14)
    axes.set_xlabel("ms a step (further left is faster)")
    axes.set_ylabel(f"{plan.metric} ({'up' if plan.higher_is_better else 'down'} is better)")
    drawing.settle()
    _label(drawing, [(arm, point) for (_, arm, _), point in zip(arms, points, strict=True)])
    said = "; ".join(f"{arm.arm}: {step:.3g} ms, {plan.metric} {metric:.5g}" for (_, arm, _), (step, metric) in zip(arms, points, strict=True))
    beaten = [arm.arm for place, (_, arm, _) in enumerate(arms) if place not in best]
    caption = (
        "Means of the runs; the upright is one standard deviation over the seeds. The broken line joins the arms that no other beats in both (Pareto front)"
    )
    caption += f"; beaten in both, though perhaps by luck: {', '.join(beaten)}." if beaten else ": all of them."
    return Picture(f"Time against {plan.metric}", caption, drawing.svg("pareto", f"Step time and {plan.metric} of each arm", said))


def _label(drawing: Drawing, arms: list[tuple[ArmResult, tuple[float, float]]]) -> None:
    """Names beside the points, from the bottom up, each above those that it would cover."""
    to_pixels = drawing.pixels_per_unit
    left, right = drawing.axes.bbox.x0, drawing.axes.bbox.x1
    taken: list[tuple[float, float, float]] = []
    for arm, point in sorted(arms, key=lambda pair: pair[1][1]):
        x, y = to_pixels.transform(point)
        width = _LETTER * len(arm.arm)
        start = x + 9 if x + 9 + width <= right else max(left, x - 9 - width)
        y += 9
        while any(start < end and begin < start + width and abs(y - at) < _LINE for begin, end, at in taken):
            y += 2
        taken.append((start, start + width, y))
        at = to_pixels.inverted().transform((start, y))
        drawing.axes.annotate(arm.arm, at, va="center", annotation_clip=False, gid=f"label{len(taken)}")
