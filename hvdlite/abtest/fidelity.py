"""What compressors made of an exact run's gradients (``--mode shadow``): over training, and in the order of how near they came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compression import load
from .curves import Curve, thinned
from .plan import Plan
from .runs import Run

VNMSE, COSINE, RESIDUAL = "vNMSE", "cosine", "residual over gradient"


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


def fidelity_of(plan: Plan, run: Run) -> list[Curve]:
    """How near candidates came step by step; in a run with compression, what is known of it: how large its residual was."""
    found = []
    for arm in plan.candidates:
        spec = load(arm).spec
        lines = [line for line in run.shadow if spec in line["figures"]]
        for metric, key in ((VNMSE, "vnmse"), (COSINE, "cosine"), (RESIDUAL, "residual_ratio")):
            found += _curve(arm, run.record.seed, metric, lines, [line["figures"][spec][key] for line in lines])
    return found + _curve(run.record.arm, run.record.seed, RESIDUAL, run.residuals, [line["ratio"] for line in run.residuals])


def _curve(arm: str, seed: int, metric: str, lines: Sequence[dict[str, Any]], values: Sequence[float]) -> list[Curve]:
    if not any(values):
        return []
    return [thinned(arm, seed, metric, [float(line["step"]) for line in lines], [line["seconds"] for line in lines], values)]


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
