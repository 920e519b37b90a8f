"""The cost model on other people's runs: calibrated at one speed of the network, does it forecast another one?

For logs that tell samples a second and bytes a step, and nothing of how a step goes: so communication counts as not overlapped. For method ``m`` on ``P`` ranks

    T_m(link) = T_compute + (T_none(link) - T_compute) * r_m + c_m,        c_m >= 0

where ``r_m`` is what ``m`` puts on the wire over what no compression does, and ``c_m``, the time of its compressor, is what is left of ``T_m`` at the link
where it is calibrated. A gather of payloads sends ``P/2`` times as much, byte for byte, as an allreduce in a ring: ``(P-1) b`` against ``2 (P-1)/P b``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Run:
    """A method's runs on one number of ranks."""

    method: str
    nbytes: float
    """A step, of one rank's payload."""
    is_gathered: bool
    seconds: Mapping[str, float]
    """Link -> time of a step, or of anything that is the same for all."""


@dataclass(frozen=True)
class Tested:
    """A forecast and what was measured, over what no compression takes on the same link."""

    method: str
    forecast: float
    measured: float

    @property
    def is_sign_right(self) -> bool:
        """Whether it says rightly faster or slower."""
        return (self.forecast < 1) == (self.measured < 1)

    @property
    def error(self) -> float:
        """``|log(forecast / measured)|``."""
        return abs(math.log(self.forecast / self.measured))


@dataclass(frozen=True)
class Score:
    """How a back-test went."""

    tested: Sequence[Tested]

    @property
    def num_right(self) -> int:
        """Signs."""
        return sum(t.is_sign_right for t in self.tested)

    @property
    def median_error(self) -> float:
        """Of the time."""
        return median(t.error for t in self.tested)


def backtest(plain: Run, runs: Sequence[Run], compute_seconds: float, num_ranks: int, *, known: str, asked: str) -> Score:
    """Calibrate each method on the link ``known`` and forecast it on ``asked``.

    Args:
        plain: without compression, on both links.
        runs: what is forecast, on both links.
        compute_seconds: what a step takes one rank alone.
        num_ranks: of all runs.
        known: the link to calibrate on.
        asked: the link to forecast.
    """
    exposed = {link: plain.seconds[link] - compute_seconds for link in (known, asked)}
    tested = []
    for run in runs:
        ratio = run.nbytes / plain.nbytes * (num_ranks / 2 if run.is_gathered else 1.0)
        compressor = max(0.0, run.seconds[known] - compute_seconds - exposed[known] * ratio)
        forecast = compute_seconds + exposed[asked] * ratio + compressor
        tested.append(Tested(run.method, forecast / plain.seconds[asked], run.seconds[asked] / plain.seconds[asked]))
    return Score(tested)
