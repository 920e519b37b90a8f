"""Forecasts in words and in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .audit import Audit
from .forecast import BASELINE, ArmForecast, Forecast
from .measured import Measured

_QUIET = 0.1
_HEAD = ("compressor", "ms a step", "90 %", "x baseline", "verdict", "exposed ms", "codec ms", "sent MB", "pays on links below", "pays up to")


def about(measured: Measured) -> Iterator[str]:
    """What was measured."""
    num_steps = len(measured.steps(held=True))
    parameters, megabytes = len(measured.ranks[0].parameters), measured.nbytes / 1e6
    yield (
        f"measured: {' '.join(measured.command)} on {measured.size} ranks and {measured.cores} cores; "
        f"{num_steps} steps alone and as many beside the exchange; {parameters} gradients, {megabytes:.3g} MB"
    )
    if measured.others > _QUIET:
        yield f"WARNING: something else took {measured.others:.0%} of this machine meanwhile, and is in every figure below; measure again when it is idle"
    if measured.cores_per_rank < 2:
        yield f"a rank has {measured.cores_per_rank:g} core{'s' * (measured.cores_per_rank != 1)} here: computing and communicating take turns on it"


def show(found: Forecast) -> Iterator[str]:
    """The ceiling, the compressors, the advice."""
    baseline = next(a for a in found.arms if a.arm == BASELINE)
    yield f"{found.where}:"
    yield (
        f"  ceiling: a step computes for {found.computed_ms:.3g} ms and takes {found.ceiling_ms:.3g} ms if the exchange costs nothing, "
        f"{baseline.step_ms.middle:.3g} ms without compression: nothing makes it more than {found.highest_speedup:.2f}x as fast"
    )
    rows = [_HEAD, *(_row(arm) for arm in found.arms)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = [cell.ljust(width) if column in (0, 4) else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
        yield "  " + "  ".join(cells).rstrip()
    yield f"  {found.recommendation}"


def show_audit(found: Audit) -> Iterator[str]:
    """Forecast beside measurement."""
    for arm in found.arms:
        sign = {None: "", True: "faster or slower: right", False: "faster or slower: WRONG"}[arm.is_sign_right]
        inside = "inside" if arm.is_inside else "outside"
        both = f"forecast {arm.forecast_ms:.4g} ms a step, measured {arm.measured_ms:.4g}"
        yield f"  {arm.arm}: {both} ({arm.error:+.0%}, {inside} the interval)  {sign}".rstrip()
    yield f"  median error {found.median_error:.0%}; faster or slower right in {found.num_signs_right} of {found.num_signs}"


def _row(arm: ArmForecast) -> Sequence[str]:
    is_baseline = arm.arm == BASELINE
    return (
        arm.arm,
        f"{arm.step_ms.middle:.4g}",
        f"{arm.step_ms.low:.3g}-{arm.step_ms.high:.3g}",
        "" if is_baseline else f"{arm.ratio.middle:.2f} [{arm.ratio.low:.2f}, {arm.ratio.high:.2f}]",
        "" if is_baseline else arm.verdict,
        f"{arm.exposed_ms:.3g}",
        f"{arm.codec_ms:.3g}",
        f"{arm.wire_bytes / 1e6:.3g}",
        "" if is_baseline else _rate(arm.pays_below_gbit),
        "" if is_baseline else _ranks(arm.pays_up_to_ranks),
    )


def _rate(gbit: float | None) -> str:
    if gbit is None:
        return "no rate"
    return "100 Gb/s+" if gbit == math.inf else f"{gbit:.2g} Gb/s" if gbit < 10 else f"{gbit:.0f} Gb/s"


def _ranks(number: int | None) -> str:
    return "none" if number is None else "any number" if number == 0 else f"{number} hosts"
