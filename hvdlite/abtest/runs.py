"""A run, and what it left behind: a folder with ``run.json`` (written when it has ended), the reports, and what the ranks printed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .files import write_whole
from .plan import Plan
from .statistics import Vector, after_warm_up, block_times

REPORTS, OUTPUT, LAUNCHER, _RECORD = "report.jsonl", "output", "launcher.txt", "run.json"
_WAITS = ("exposed_ms", "encode_ms", "decode_ms", "exposed_encode_ms", "exposed_decode_ms")


@dataclass(frozen=True)
class Record:
    """How a run ended."""

    arm: str
    seed: int
    exit_code: int
    started: str
    """UTC, ISO 8601."""
    seconds: float
    """From start to end, the imports of the script included."""
    problem: str = ""
    """Why it says nothing about the metric, in words; empty if it does."""


@dataclass(frozen=True)
class Reported:
    """One call of ``hvd.report()`` on rank 0."""

    step: int
    seconds: float
    optimizer_steps: int
    wire_bytes: int
    exposed_ms: float
    values: dict[str, float]
    encode_ms: float = 0.0
    decode_ms: float = 0.0
    exposed_encode_ms: float = 0.0
    exposed_decode_ms: float = 0.0


@dataclass(frozen=True)
class StepParts:
    """What a step of rank 0 was made of, in milliseconds: means over the steps after the warm-up. The first four add up to the step."""

    compute_ms: float
    encode_ms: float
    """What the training waited for; what ran beside it is in ``hidden_codec_ms``."""
    wire_ms: float
    """Messages under way, and waiting for slower ranks."""
    decode_ms: float
    hidden_codec_ms: float
    """Encoding and decoding that the backward pass hid. On a CPU it still takes time from it."""

    @property
    def exposed_ms(self) -> float:
        """What the training waited for communication."""
        return self.encode_ms + self.wire_ms + self.decode_ms


@dataclass(frozen=True)
class Run:
    """A finished run."""

    record: Record
    reports: Sequence[Reported]
    weights: Sequence[str]
    """Digests of what its optimizers started from."""
    counters: dict[str, float]
    """Rank 0's at the end; empty if it did not come to an end."""
    metric: float | None
    """The last value of the plan's metric; None if there is none. It may be no finite number."""
    job: dict[str, str] = field(default_factory=dict)
    """Where it ran, as rank 0 said."""
    since: int = 0
    """Optimizer steps from which on the arm is what it is: those before are the same in all."""
    shadow: Sequence[dict[str, Any]] = ()
    """Figures of candidates, a step each."""
    residuals: Sequence[dict[str, Any]] = ()
    """Rank 0's residual over its gradient, now and then."""
    forks: Sequence[str] = ()
    """Digests of the weights at step ``since``."""
    drifts: Sequence[str] = ()
    """When ranks were found to have different weights, in words."""

    @cached_property
    def blocks(self) -> Vector:
        """Seconds a step of the optimizer, or a reported one where none counts; in blocks if there are several reports."""
        counts, reports = any(r.optimizer_steps for r in self.reports), self._reports_since
        times = block_times([r.optimizer_steps if counts else r.step for r in reports], [r.seconds for r in reports])
        steps = self.counters.get("steps", 0)
        if not len(times) and steps > 1 and not self.since:
            times = np.array([self.counters["steps_ms"] / 1e3 / (steps - 1)])
        return times

    @property
    def steps(self) -> int:
        """Optimizer steps, or reported ones where the optimizer counted none."""
        return int(self.counters.get("steps", 0)) or max((r.step for r in self.reports), default=0)

    @property
    def wire_bytes_per_step(self) -> float | None:
        """Sent by rank 0 for its training; what candidates beside it send is not in it."""
        if self.shadow and self.counters and self.steps:
            return self.counters["dense_bytes"] / self.steps
        return self._per_step("wire_bytes")

    @property
    def exposed_ms_per_step(self) -> float | None:
        """What a step of rank 0 waited for communication."""
        return self._per_step("exposed_ms")

    def _per_step(self, counter: str) -> float | None:
        if not self.counters or not self.steps:
            return None
        first = self._reports_since[0] if self.since and self._reports_since else None
        before, steps = (getattr(first, counter), first.optimizer_steps) if first else (0, 0)
        return float((self.counters[counter] - before) / (self.steps - steps)) if self.steps > steps else None

    @property
    def _reports_since(self) -> Sequence[Reported]:
        return [r for r in self.reports if r.optimizer_steps >= self.since]

    @cached_property
    def parts(self) -> StepParts | None:
        """What a step was made of; None where no optimizer of ours counted steps."""
        if not self.counters.get("steps"):
            return None
        reports = self._reports_since
        first, last = after_warm_up([r.optimizer_steps for r in reports])
        if first < last:
            begin, end = ({**vars(reports[i])} for i in (first, last))
            steps = end["optimizer_steps"] - begin["optimizer_steps"]
            step_ms = (end["seconds"] - begin["seconds"]) * 1e3 / steps
            spent = {name: (end[name] - begin[name]) / steps for name in _WAITS}
        elif self.counters["steps"] > 1 and not self.since:
            step_ms = self.counters["steps_ms"] / (self.counters["steps"] - 1)
            spent = {name: self.counters.get(name, 0.0) / self.counters["steps"] for name in _WAITS}
        else:
            return None
        encode, decode = spent["exposed_encode_ms"], spent["exposed_decode_ms"]
        hidden = max(0.0, spent["encode_ms"] + spent["decode_ms"] - encode - decode)
        return StepParts(max(0.0, step_ms - spent["exposed_ms"]), encode, max(0.0, spent["exposed_ms"] - encode - decode), decode, hidden)

    def curve(self, metric: str) -> tuple[list[float], list[float]]:
        """``(seconds, values)`` of a metric."""
        points = [(r.seconds, r.values[metric]) for r in self.reports if metric in r.values]
        return [s for s, _ in points], [v for _, v in points]


def folder_of(folder: Path, seed: int, arm: str) -> Path:
    """Where a run keeps what it leaves."""
    return folder / "runs" / name_of(seed, arm)


def name_of(seed: int, arm: str) -> str:
    """A name for files that tells seed and arm."""
    return f"seed{seed}.{re.sub(r'[^A-Za-z0-9_.=-]', '-', arm)}"


def keep(record: Record, folder: Path) -> None:
    """Make a run a finished one."""
    write_whole(folder / _RECORD, msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def read(folder: Path, plan: Plan) -> Run | None:
    """What a run left; None if it has not ended."""
    try:
        record = msgspec.json.decode((folder / _RECORD).read_bytes(), type=Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    lines = [line for line in _lines(folder / REPORTS) if isinstance(line, dict)]
    reports = [Reported(**line) for line in lines if "values" in line]
    weights = [line["weights"] for line in lines if "weights" in line]
    counters: dict[str, float] = next((line["end"] for line in lines if "end" in line), {})
    job: dict[str, str] = next((line["job"] for line in lines if "job" in line), {})
    metric = find_metric(folder, plan, reports)
    return Run(
        record,
        reports,
        weights,
        counters,
        metric if record.exit_code == 0 else None,
        job,
        since=plan.fork_at,
        shadow=[line["shadow"] for line in lines if "shadow" in line],
        residuals=[line["residual"] for line in lines if "residual" in line],
        forks=[line["fork"] for line in lines if "fork" in line],
        drifts=[line["drift"]["problem"] for line in lines if "drift" in line],
    )


def find_metric(folder: Path, plan: Plan, reports: Sequence[Reported]) -> float | None:
    """The last value of the metric: by ``--metric-regex`` in what the ranks printed, rank 0 first, or else in the reports."""
    if not plan.metric_regex:
        return next((r.values[plan.metric] for r in reversed(reports) if plan.metric in r.values), None)
    for path in sorted((folder / OUTPUT).glob("rank.*/std*"), key=lambda p: (len(p.parent.name), p.parent.name, p.name != "stdout")):
        found = list(re.finditer(plan.metric_regex, path.read_text(encoding="utf-8", errors="replace")))
        for match in reversed(found):
            number = _number(match[1])
            if number is not None:
                return number
    return None


def last_reports(folder: Path) -> list[Reported]:
    """The reports so far."""
    return [Reported(**line) for line in _lines(folder / REPORTS) if isinstance(line, dict) and "values" in line]


def _number(written: str) -> float | None:
    try:
        return float(written.replace(",", ""))
    except ValueError:
        return None


def _lines(path: Path) -> list[Any]:
    """The lines that are whole: the last one of a killed run may not be."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(loads(line))
            except JSONDecodeError:
                break
    return found


def is_finite(value: float | None) -> bool:
    """Whether there is a number."""
    return value is not None and math.isfinite(value)
