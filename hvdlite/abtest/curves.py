"""What the runs reported on the way, thinned to what a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .runs import Run
from .statistics import Vector

MOST_POINTS = 200


@dataclass(frozen=True)
class Curve:
    """A metric of one run. Beyond 200 reports a point is the mean of several neighbours, and stands at the last one's step and time."""

    arm: str
    seed: int
    metric: str
    steps: list[float]
    seconds: list[float]
    """Since ``hvd.init()``."""
    values: list[float | None]
    """None: not finite."""
    points_per_value: int = 1
    """How many reports a value is the mean of, at most."""


def curves_of(run: Run) -> list[Curve]:
    """One for each metric that the run reported, in the order in which they came."""
    names = list(dict.fromkeys(name for report in run.reports for name in report.values))
    return [_curve(run, name) for name in names]


def _curve(run: Run, metric: str) -> Curve:
    reports = [r for r in run.reports if metric in r.values]
    at, seconds = [float(r.step) for r in reports], [r.seconds for r in reports]
    return thinned(run.record.arm, run.record.seed, metric, at, seconds, [r.values[metric] for r in reports])


def thinned(arm: str, seed: int, metric: str, steps: Sequence[float], seconds: Sequence[float], values: Sequence[float]) -> Curve:
    """A curve of at most 200 points."""
    parts = np.array_split(np.arange(len(values)), min(MOST_POINTS, len(values)))
    means, ends = [_mean([values[i] for i in part]) for part in parts], [part[-1] for part in parts]
    return Curve(arm, seed, metric, [steps[i] for i in ends], [seconds[i] for i in ends], means, max(len(part) for part in parts))


def _mean(values: Sequence[float]) -> float | None:
    found = float(np.mean(values))
    return found if np.isfinite(found) else None


@dataclass(frozen=True)
class Band:
    """A metric of one arm over its seeds, at places that all of them reached."""

    arm: str
    at: Vector
    mean: Vector
    low: Vector
    high: Vector
    num_runs: int


def band(curves: Sequence[Curve], *, over_time: bool) -> Band | None:
    """Mean and range of the runs of one arm, interpolated between their reports; None if none of them has two points.

    Time begins with the first report of a run: what it took to get there, such as reading data, is none of the arm's doing.
    """
    lines = []
    for curve in curves:
        at = [seconds - curve.seconds[0] for seconds in curve.seconds] if over_time else curve.steps
        points = [(x, y) for x, y in zip(at, curve.values, strict=True) if y is not None]
        if len(points) > 1 and points[-1][0] > points[0][0]:
            lines.append(np.array(points).T)
    if not lines:
        return None
    low, high = max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines)
    if low >= high:
        return None
    most = max(len(xs) for xs, _ in lines)
    grid: Vector = lines[0][0] if len(lines) == 1 or (not over_time and _are_alike(lines)) else np.linspace(low, high, min(MOST_POINTS, max(2, most)))
    values = np.array([np.interp(grid, xs, ys) for xs, ys in lines])
    return Band(curves[0].arm, grid, values.mean(0), values.min(0), values.max(0), len(lines))


def _are_alike(lines: Sequence[Vector]) -> bool:
    return all(np.array_equal(line[0], lines[0][0]) for line in lines)
