"""From the runs to the answer: ``ab.json`` and ``ab.csv``."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import msgspec
import numpy as np

from ..compression import ErrorFeedback
from ..compression import load as load_compressor
from ..errors import SettingError
from ..telemetry.reports import parse_stop
from ..version import VERSION
from .arms import entangled
from .curves import Curve, curves_of
from .environment import job, job_differences, machine
from .fidelity import RESIDUAL, Played, fidelity_of, ranking
from .files import write_whole
from .plan import SEED, Plan
from .runs import Run, StepParts, is_finite
from .statistics import Vector, diverged, first_reached, grows, median_time
from .verdict import Judged, Pairs, default_margin, judge

JSON, CSV = "ab.json", "ab.csv"


@dataclass(frozen=True)
class RunRow:
    """The figures of one run."""

    arm: str
    seed: int
    exit_code: int
    problem: str
    started: str
    seconds: float
    metric: float | None
    """None: none was reported, or it is no finite number; then the run has diverged."""
    steps: int
    step_ms: float | None
    """Median of its blocks."""
    wire_bytes_per_step: float | None
    exposed_ms_per_step: float | None
    target_seconds: float | None
    diverged: bool
    watched_seconds: float | None = None
    """Until the last report of the metric: a run without ``target_seconds`` was not there by then."""
    compute_ms: float | None = None
    encode_ms: float | None = None
    wire_ms: float | None = None
    decode_ms: float | None = None
    hidden_codec_ms: float | None = None
    """What a step was made of: see :class:`~hvdlite.abtest.runs.StepParts`."""


@dataclass(frozen=True)
class ArmResult:
    """The figures of one arm. ``judged`` is None for the baseline."""

    arm: str
    num_planned: int
    num_good: int
    metric_mean: float | None
    metric_sd: float | None
    step_ms: float | None
    wire_bytes_per_step: float | None
    exposed_ms_per_step: float | None
    num_reached: int | None
    target_seconds: float | None
    judged: Judged | None
    parts: StepParts | None = None


@dataclass(frozen=True)
class Result:
    """All of it. What came later than the first version of ``ab.json`` has a default, so that older ones can be read."""

    version: str
    machine: dict[str, str]
    plan: Plan
    margin: float
    target: float | None
    arms: list[ArmResult]
    runs: list[RunRow]
    missing: list[str]
    not_controlled: list[str]
    written: str = ""
    """When, UTC, ISO 8601."""
    job: dict[str, str] = field(default_factory=dict)
    """What the ranks said of where they ran."""
    curves: list[Curve] = field(default_factory=list)
    """What was reported on the way."""
    fidelity: list[Curve] = field(default_factory=list)
    """How far what was applied is from the exact mean gradient, over steps, where it was measured."""
    warnings: list[str] = field(default_factory=list)
    """What detectors found, in words."""
    ranking: list[Played] = field(default_factory=list)
    """With ``--mode shadow``: the candidates, the nearest to the exact gradients first."""


def analyse(plan: Plan, runs: Sequence[Run]) -> Result:
    """Judge what there is, and say what is missing."""
    by_arm = {arm: {run.record.seed: run for run in runs if run.record.arm == arm} for arm in plan.arms}
    finals = _metrics(by_arm[plan.baseline], plan)
    margin = default_margin(finals) if plan.margin is None else plan.margin
    sign = 1.0 if plan.higher_is_better else -1.0
    stop_at, mean = parse_stop(plan.stop_at), _mean(finals)
    target = stop_at.value if stop_at is not None and stop_at.name == plan.metric else None if mean is None else mean - sign * margin
    bad = {arm: {s for s, run in by_seed.items() if _diverged(run, plan, finals)} for arm, by_seed in by_arm.items()}
    pairs = {arm: _pairs(plan, by_arm[arm], by_arm[plan.baseline], bad[arm] - bad[plan.baseline]) for arm in plan.arms[1:]}
    judged = {} if plan.mode == "shadow" else judge(pairs, higher_is_better=plan.higher_is_better, margin=margin)
    rows = [_run_row(run, plan, target, run.record.seed in bad[run.record.arm]) for run in runs]
    played, fidelity = ranking(plan, runs), [curve for run in runs for curve in fidelity_of(plan, run)]
    arms = [_arm_result(arm, plan, [r for r in rows if r.arm == arm], by_arm[arm], target, judged.get(arm)) for arm in plan.arms]
    sent = {each.arm: each.wire_bytes for each in played}
    arms = [replace(arm, wire_bytes_per_step=sent.get(arm.arm, arm.wire_bytes_per_step)) for arm in arms]
    missing = [f"{row.arm}, seed {row.seed}: {row.problem}" for row in rows if row.problem]
    missing += [f"{arm}, seed {seed}: not run" for seed, arm in plan.order() if seed not in by_arm[arm]]
    return Result(
        version=VERSION,
        machine=machine(),
        plan=plan,
        margin=margin,
        target=target,
        arms=arms,
        runs=rows,
        missing=missing,
        not_controlled=_not_controlled(plan, by_arm, rows) + job_differences(runs),
        written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        job=job(runs),
        curves=[curve for run in runs for curve in curves_of(run)],
        fidelity=fidelity,
        warnings=[f"{arm}: {line}" for arm in plan.arms for line in _warnings(arm, by_arm[arm], bad[arm], fidelity)],
        ranking=played,
    )


def write(result: Result, folder: Path) -> None:
    """``ab.json`` with everything, ``ab.csv`` with a row a run. Numbers that are not finite become null."""
    write_whole(folder / JSON, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    text = io.StringIO()
    names = list(RunRow.__dataclass_fields__)
    table = csv.writer(text)
    table.writerow(names)
    table.writerows([getattr(row, name) for name in names] for row in result.runs)
    write_whole(folder / CSV, text.getvalue().encode())


def load(path: Path) -> Result:
    """Read ``ab.json``.

    Raises:
        SettingError: it is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError) as error:
        raise SettingError(f"{str(path)!r} cannot be read ({error}); the ab.json of a comparison is expected; name one, or two after --compare") from None


def _metrics(by_seed: Mapping[int, Run], plan: Plan) -> Vector:
    return np.array([_or_nan(by_seed[s].metric) if s in by_seed else np.nan for s in range(plan.seeds)])


def _seconds(by_seed: Mapping[int, Run], plan: Plan) -> Vector:
    good = {s: run for s, run in by_seed.items() if run.record.exit_code == 0 and len(run.blocks)}
    return np.array([float(np.median(good[s].blocks)) if s in good else np.nan for s in range(plan.seeds)])


def _pairs(plan: Plan, arm: Mapping[int, Run], baseline: Mapping[int, Run], bad: set[int]) -> Pairs:
    metric = _metrics(arm, plan)
    metric[list(bad)] = np.nan
    both = [s for s in arm if s in baseline and len(arm[s].blocks) and len(baseline[s].blocks)]
    blocks = (arm[both[0]].blocks, baseline[both[0]].blocks) if len(both) == 1 else (None, None)
    return Pairs(metric, _metrics(baseline, plan), _seconds(arm, plan), _seconds(baseline, plan), len(bad), *blocks)


def _diverged(run: Run, plan: Plan, finals: Vector) -> bool:
    if run.metric is None:
        return False
    values = run.curve(plan.metric)[1] if not plan.metric_regex else [run.metric]
    return diverged(values, finals, plan.higher_is_better)


def _run_row(run: Run, plan: Plan, target: float | None, has_diverged: bool) -> RunRow:
    record = run.record
    reached = None if target is None else first_reached(*run.curve(plan.metric), target, plan.higher_is_better)
    seen, parts = run.curve(plan.metric)[0], run.parts
    return RunRow(
        arm=record.arm,
        seed=record.seed,
        exit_code=record.exit_code,
        problem=record.problem,
        started=record.started,
        seconds=record.seconds,
        metric=run.metric if is_finite(run.metric) else None,
        steps=run.steps,
        step_ms=float(np.median(run.blocks)) * 1e3 if len(run.blocks) else None,
        wire_bytes_per_step=run.wire_bytes_per_step,
        exposed_ms_per_step=parts.exposed_ms if parts else None,
        target_seconds=reached,
        diverged=has_diverged,
        watched_seconds=seen[-1] if seen else None,
        **(vars(parts) if parts else {}),
    )


def _arm_result(arm: str, plan: Plan, rows: Sequence[RunRow], by_seed: Mapping[int, Run], target: float | None, judged: Judged | None) -> ArmResult:
    good = [row for row in rows if not row.problem]
    finals = np.array([_or_nan(row.metric) for row in good])
    finite = finals[np.isfinite(finals)]
    curves = target is not None and any(len(by_seed[row.seed].curve(plan.metric)[0]) > 1 for row in good)
    watched = [by_seed[row.seed].curve(plan.metric)[0][-1] for row in good] if curves else []
    reached = [row.target_seconds for row in good] if curves else []
    return ArmResult(
        arm=arm,
        num_planned=plan.seeds if arm in plan.run_arms else 0,
        num_good=len(good),
        metric_mean=_mean(finals),
        metric_sd=float(np.std(finite, ddof=1)) if len(finite) > 1 else None,
        step_ms=_mean([row.step_ms for row in good]),
        wire_bytes_per_step=_mean([row.wire_bytes_per_step for row in good]),
        exposed_ms_per_step=_mean([row.exposed_ms_per_step for row in good]),
        num_reached=sum(when is not None for when in reached) if curves else None,
        target_seconds=median_time(reached, watched) if curves else None,
        judged=judged,
        parts=_mean_parts([by_seed[row.seed].parts for row in good]),
    )


def _warnings(arm: str, by_seed: Mapping[int, Run], bad: set[int], fidelity: Sequence[Curve]) -> list[str]:
    found = [f"seed {seed}: diverged" for seed in sorted(bad)]
    for seed, run in by_seed.items():
        found += [f"seed {seed}: {problem}" for problem in run.drifts]
    growing = [c.seed for c in fidelity if c.arm == arm and c.metric == RESIDUAL and grows(c.steps, [_or_nan(value) for value in c.values])]
    words = "the residual grows beside the gradient: what is not sent piles up; send more, or lower the learning rate"
    return found + [f"seed {seed}: {words}" for seed in growing]


def _mean_parts(parts: Sequence[StepParts | None]) -> StepParts | None:
    known = [part for part in parts if part is not None]
    return StepParts(*(float(np.mean([getattr(part, f.name) for part in known])) for f in fields(StepParts))) if known else None


def _not_controlled(plan: Plan, by_arm: Mapping[str, Mapping[int, Run]], rows: Sequence[RunRow]) -> list[str]:
    found = list(entangled(plan.arms))
    starts = {(run.record.seed, arm): tuple(run.weights) for arm, by_seed in by_arm.items() for run in by_seed.values() if run.record.exit_code == 0}
    remedy = f"draw from generators that hvd.init() seeds, or write --seed {SEED} in the command"
    if not any(starts.values()):
        found.append("first weights: the script trains with none of our optimizers, so whether arms start alike is not known")
    for seed in range(plan.seeds):
        if len({weights for (s, _), weights in starts.items() if s == seed and weights}) > 1:
            found.append(f"first weights: the arms of seed {seed} start from different ones, so its pairs are none; {remedy}")
    first = {weights for (_, arm), weights in starts.items() if arm == plan.baseline and weights}
    if len(first) == 1 and sum(arm == plan.baseline for _, arm in starts) > 1:
        found.append(f"seeds: every seed starts from the same weights, so the script sets a seed of its own and the pairs are repetitions; {remedy}")
    found += _modes(plan, by_arm)
    found += _without_effect(plan, rows)
    steps = {row.steps for row in rows if not row.problem}
    if len(steps) > 1:
        found.append(f"steps: runs took {min(steps)} to {max(steps)}; metrics are those of the ends")
    sizes = {run.counters.get("bucket_bytes") for by_seed in by_arm.values() for run in by_seed.values() if run.counters.get("bucket_bytes")}
    if len(sizes) > 1:
        found.append("bucket sizes: chosen by measurement in each run, and not the same in all; HVDLITE_BUCKET_BYTES fixes them")
    found.append(f"order of the data: equal in the arms only as far as the script follows the seed; {plan.metric} is rank 0's")
    found.append("this machine: what else runs on it, its clock and its temperature; the order of the arms is balanced against what changes slowly")
    return found


def _modes(plan: Plan, by_arm: Mapping[str, Mapping[int, Run]]) -> list[str]:
    found = []
    if plan.mode == "shadow":
        found.append("weights: they followed the exact gradients, so what an arm would have done to its own later gradients was not seen")
        biased = [arm for arm in plan.candidates if isinstance(load_compressor(arm), ErrorFeedback)]
        if plan.shadow_every > 1 and biased:
            found.append(f"residuals: {', '.join(biased)} saw every {plan.shadow_every}th gradient only, so their residuals are not those of a run")
    if plan.mode == "fork":
        digests = {(seed, arm): tuple(run.forks) for arm, by_seed in by_arm.items() for seed, run in by_seed.items() if run.record.exit_code == 0}
        if digests and not any(digests.values()):
            found.append("weights at the fork: not known; an optimizer of hvdlite.torch notes them, if the script takes more steps than --fork-at")
        for seed in range(plan.seeds):
            if len({digest for (s, _), digest in digests.items() if s == seed and digest}) > 1:
                found.append(f"weights at the fork: the arms of seed {seed} came to different ones: the script does not repeat itself, so its pairs are none")
    return found


def _without_effect(plan: Plan, rows: Sequence[RunRow]) -> list[str]:
    """Arms that sent what the baseline sent: then the script trains the same in both."""
    sent = {arm: {row.wire_bytes_per_step for row in rows if row.arm == arm and not row.problem} - {None} for arm in plan.arms}
    same = [arm for arm in plan.arms if arm != plan.baseline and sent[arm] and sent[arm] <= sent[plan.baseline]]
    return [
        f"compression: {arm} sent as many bytes a step as {plan.baseline}, so it compressed nothing; gradients are expected to go through "
        "an optimizer or tape of hvdlite's, and to hold matrices large enough to be compressed"
        for arm in same
    ]


def _or_nan(value: float | None) -> float:
    return value if value is not None and is_finite(value) else float("nan")


def _mean(values: Vector | Sequence[float | None]) -> float | None:
    finite = [v for v in values if v is not None and np.isfinite(v)]
    return float(np.mean(finite)) if finite else None
