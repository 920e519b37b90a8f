"""The forecast against what ``hvdlite ab`` measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from ..abtest.result import Result
from .forecast import BASELINE, Forecast


@dataclass(frozen=True)
class Audited:
    """One compressor, in milliseconds a step."""

    arm: str
    forecast_ms: float
    measured_ms: float
    error: float
    """Forecast over measured, less one."""
    is_inside: bool
    """Whether what was measured lies in the interval of the forecast."""
    is_sign_right: bool | None
    """Whether it said rightly faster or slower than no compression; None for that itself, or where it was not measured."""


@dataclass(frozen=True)
class Audit:
    """All compressors that were both forecast and measured."""

    arms: list[Audited]
    median_error: float
    num_signs: int
    num_signs_right: int


def audit(found: Forecast, measured: Result) -> Audit:
    """Compare, arm by arm; arms that no finished run has measured are left out."""
    times = {a.arm: a.step_ms for a in measured.arms if a.step_ms is not None and math.isfinite(a.step_ms)}
    baseline = times.get(BASELINE)
    arms = []
    for arm in found.arms:
        if arm.arm not in times:
            continue
        real = times[arm.arm]
        sign = None
        if arm.arm != BASELINE and baseline is not None:
            sign = (arm.ratio.middle < 1) == (real < baseline)
        arms.append(Audited(arm.arm, arm.step_ms.middle, real, arm.step_ms.middle / real - 1, arm.step_ms.low <= real <= arm.step_ms.high, sign))
    signs = [a.is_sign_right for a in arms if a.is_sign_right is not None]
    return Audit(arms, median([abs(a.error) for a in arms] or [math.nan]), len(signs), sum(signs))
