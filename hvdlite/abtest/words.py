"""Figures in words, for the terminal and the page alike."""

from __future__ import annotations

from ..telemetry.reports import parse_stop
from .plan import Plan
from .result import ArmResult, Result
from .statistics import Interval

_MINUS = "\N{MINUS SIGN}"
OF_ONE = " within one pair"
"""A bootstrap over blocks says nothing about other runs."""


def number(value: float | None, form: str) -> str:
    """``-`` where there is none."""
    return "-" if value is None else typeset(value, form)


def bounds(interval: Interval | None, form: str) -> str:
    """``[low, high]``, and what is to be known of them."""
    if interval is None:
        return "[?]"
    return f"[{interval.low:{form}}, {interval.high:{form}}]".replace("-", _MINUS) + OF_ONE * (interval.method == "bootstrap of blocks")


def typeset(value: float, form: str) -> str:
    """A number with a minus sign, where it needs one."""
    return format(value, form).replace("-", _MINUS)


def in_bytes(value: float) -> str:
    """With three digits and a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def where(plan: Plan) -> str:
    """On what the ranks ran."""
    return f"{plan.size} ranks" + (f" on {plan.hosts} hosts, links of {plan.link}" if plan.link else "")


def sentences(arm: ArmResult, result: Result) -> list[str]:
    """What an arm costs and gives, one thing a sentence; empty for the baseline."""
    judged, plan, baseline = arm.judged, result.plan, result.arms[0]
    if judged is None:
        return []
    said = []
    if judged.time_ratio is not None:
        change = judged.time_ratio - 1
        ratio = f"ratio {judged.time_ratio:.3f} {bounds(judged.time_ratio_interval, '.3f')}"
        said.append(f"A step takes {abs(change):.1%} {'longer' if change > 0 else 'less time'} than with {plan.baseline} ({ratio}).".replace("%", " %"))
    else:
        said.append("Nothing is known about its step time.")
    if judged.difference is not None:
        better = judged.difference > 0 if plan.higher_is_better else judged.difference < 0
        amount = f"{typeset(abs(judged.difference), '.3g')} {'better' if better else 'worse'}" if judged.difference else "the same"
        found = f"{typeset(judged.difference, '+.3g')} {bounds(judged.difference_interval, '+.3g')}"
        said.append(f"On average {plan.metric} is {amount} ({found}; margin {result.margin:.3g}).")
    else:
        said.append(f"No run ended with {plan.metric} that can be compared.")
    if arm.wire_bytes_per_step and baseline.wire_bytes_per_step:
        fewer = baseline.wire_bytes_per_step / arm.wire_bytes_per_step
        compared = f"{fewer:.3g} times fewer than {plan.baseline}" if fewer > 1 else f"{1 / fewer:.3g} times as many as {plan.baseline}"
        said.append(f"Rank 0 sends {in_bytes(arm.wire_bytes_per_step)} a step, {compared}.")
    return said


def baseline(result: Result) -> str:
    """What the arms were compared with."""
    arm, metric = result.arms[0], result.plan.metric
    parts = []
    if arm.metric_mean is not None:
        parts.append(f"{metric} {typeset(arm.metric_mean, '.5g')}" + (f" ± {typeset(arm.metric_sd, '.2g')}" if arm.metric_sd is not None else ""))
    if arm.step_ms is not None:
        parts.append(f"{arm.step_ms:.2f} ms a step")
    if arm.wire_bytes_per_step is not None:
        parts.append(f"{in_bytes(arm.wire_bytes_per_step)} a step from rank 0")
    return f"The baseline, {arm.arm}: {', '.join(parts) or 'nothing is known'}; {arm.num_good} of {arm.num_planned} runs. {_ends(result.plan)}"


def _ends(plan: Plan) -> str:
    stop = parse_stop(plan.stop_at)
    if stop is None:
        return "Every run ended by itself."
    if stop.name:
        return f"Every run ended when {stop.name} was {typeset(stop.value, 'g')}, or by itself."
    return f"Every run ended at step {stop.value:g}." if stop.kind == "steps" else f"Every run ended after {stop.value:g} min."


def rule(result: Result) -> str:
    """How the metric was judged."""
    plan = result.plan
    better = "higher" if plan.higher_is_better else "lower"
    given = "as given" if plan.margin is not None else "by rule: the larger of one standard deviation over the baseline's seeds and 0.5 % of its mean"
    return f"{plan.metric}: {better} is better; not worse means by less than {result.margin:.4g} ({given}). Each bound holds with 95 %."


def missing(result: Result) -> list[str]:
    """``result.missing`` for readers: runs that were not begun are told by arm, not one by one."""
    there = {(run.arm, run.seed) for run in result.runs}
    absent = {arm: [str(seed) for seed in range(result.plan.seeds) if (arm, seed) not in there] for arm in result.plan.arms}
    problems = [f"{run.arm}, seed {run.seed}: {run.problem}" for run in result.runs if run.problem]
    return problems + [f"{arm}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: not run" for arm, seeds in absent.items() if seeds]
