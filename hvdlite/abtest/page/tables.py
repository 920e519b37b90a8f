"""The tables of the page: every number that a claim or a figure rests on."""

from __future__ import annotations

from dataclasses import dataclass

from ..result import Result, RunRow
from ..statistics import Interval
from ..words import bounds, in_bytes, number, typeset


@dataclass(frozen=True)
class Table:
    """Headings, and rows of texts; the first column names the row."""

    caption: str
    headings: list[str]
    rows: list[list[str]]


def arms(result: Result) -> Table:
    """A row an arm."""
    plan = result.plan
    headings = ["arm", "runs", plan.metric, "sd", "difference", "ms/step", "step time ratio", "bytes/step", "compute ms", "encode ms", "wire ms", "decode ms"]
    headings += ["hidden codec ms", "time to target"]
    rows = []
    for arm in result.arms:
        judged, parts = arm.judged, arm.parts
        rows.append([
            arm.arm,
            f"{arm.num_good}/{arm.num_planned}",
            number(arm.metric_mean, ".5g"),
            number(arm.metric_sd, ".2g"),
            _with_bounds(judged.difference, judged.difference_interval, "+.3g") if judged else "",
            number(arm.step_ms, ".2f"),
            _with_bounds(judged.time_ratio, judged.time_ratio_interval, ".3f") if judged else "",
            "-" if arm.wire_bytes_per_step is None else in_bytes(arm.wire_bytes_per_step),
            *[number(getattr(parts, name, None), ".2f") for name in ("compute_ms", "encode_ms", "wire_ms", "decode_ms", "hidden_codec_ms")],
            "-" if arm.num_reached is None else f"{number(arm.target_seconds, '.1f')} s ({arm.num_reached} of {arm.num_good})",
        ])  # fmt: skip
    return Table("Means over the runs of each arm", headings, rows)


def tests(result: Result) -> Table:
    """What the claims rest on."""
    headings = ["arm", "pairs", "timed pairs", "p not worse", "p worse", "p faster", "p slower", "interval of the metric", "interval of the time"]
    rows = [
        [
            arm.arm,
            str(judged.num_pairs),
            str(judged.num_timed_pairs),
            *[format(p, ".4f") for p in (judged.p_not_worse, judged.p_worse, judged.p_faster, judged.p_slower)],
            judged.difference_interval.method if judged.difference_interval else "-",
            judged.time_ratio_interval.method if judged.time_ratio_interval else "-",
        ]
        for arm in result.arms
        if (judged := arm.judged) is not None
    ]
    return Table("Exact sign-flip tests after Holm's correction over the arms; a claim needs p of at most 0.05, and its interval", headings, rows)


def runs(result: Result) -> Table:
    """Every run, every raw number: the columns of ``ab.csv``, what went wrong last, because it is long."""
    names = sorted(RunRow.__dataclass_fields__, key="problem".__eq__)
    rows = [[_raw(getattr(row, name)) for name in names] for row in result.runs]
    return Table("Every run, as in ab.csv; six digits", [name.replace("_", " ") for name in names], rows)


def _raw(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _with_bounds(value: float | None, interval: Interval | None, form: str) -> str:
    return "-" if value is None else f"{typeset(value, form)} {bounds(interval, form)}"
