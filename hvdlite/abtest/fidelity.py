"""What compressors made of an exact run's gradients (``--mode shadow``): over training, and in the order of how near they came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..compression import load
from .plan import Plan
from .runs import Run

_POINTS = 200


@dataclass(frozen=True)
class Fidelity:
    """Curves over training, means over the runs; at most 200 points."""

    step: list[int]
    vnmse: list[float]
    """Squared distance of the candidate's mean gradient from the exact one, over the squared norm of that."""
    cosine: list[float]
    residual_ratio: list[float]
    """Rank 0's residual over its gradient, in norms."""


@dataclass(frozen=True)
class Played:
    """A candidate's means over all steps; times and bytes are rank 0's, a step's."""

    arm: str
    vnmse: float
    cosine: float
    residual_ratio: float
    encode_ms: float
    decode_ms: float
    wire_bytes: float


def curves(plan: Plan, runs: Sequence[Run]) -> dict[str, Fidelity]:
    """By arm, as far as there are figures."""
    found = {}
    for arm in plan.candidates:
        spec, by_step = load(arm).spec, defaultdict(list)
        for line in (line for run in runs for line in run.shadow if spec in line["figures"]):
            by_step[line["step"]].append(line["figures"][spec])
        steps = sorted(by_step)
        steps = [steps[i] for i in np.unique(np.linspace(0, len(steps) - 1, min(_POINTS, len(steps))).astype(int))] if steps else []
        if steps:
            found[arm] = Fidelity(steps, *([_mean([f[key] for f in by_step[s]]) for s in steps] for key in ("vnmse", "cosine", "residual_ratio")))
    return found


def ranking(plan: Plan, runs: Sequence[Run]) -> list[Played]:
    """The candidates, the nearest to the exact mean first."""
    found = []
    for arm in plan.candidates:
        spec = load(arm).spec
        figures = [line["figures"][spec] for run in runs for line in run.shadow if spec in line["figures"]]
        if figures:
            names = [name for name in Played.__dataclass_fields__ if name != "arm"]
            found.append(Played(arm, **{name: _mean([f[name] for f in figures]) for name in names}))
    return sorted(found, key=lambda played: played.vnmse)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
