"""What is shown while it runs, and the table at the end."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import IO, Any

from .plan import Plan
from .recommendation import recommend
from .result import ArmResult, Result
from .runs import Run
from .statistics import Interval
from .words import bounds, number, rule, typeset, where

_TAIL_BYTES = 4096


class Progress:
    """One line about all runs with the time that is left; on a terminal it is drawn anew, elsewhere a line is printed a run.

    It draws once a second at most: what watches must not slow what is measured.
    """

    def __init__(self, plan: Plan, output: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._plan, self._output = plan, output
        self._left = plan.order()
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._began = 0.0
        self._text = ""
        self._bar: Bar | None = None
        if output.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=Console(file=output), auto_refresh=False)
            self._task = self._bar.add_task("", total=len(self._left))

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def kept(self, seed: int, arm: str) -> None:
        """A run had ended before."""
        self._left.remove((seed, arm))
        self._line(f"{self._count()} {arm}, seed {seed}: kept from before")

    def begin(self, seed: int, arm: str) -> None:
        """A run begins."""
        self._began, self._text = time.monotonic(), f"{arm}, seed {seed}"
        self._draw()

    def look(self, reports: Path) -> None:
        """Show what the run under way reported last."""
        if self._bar is not None:
            last = _last_report(reports)
            said = ", ".join(f"{name} {value:.4g}" for name, value in last["values"].items()) if last else ""
            self._draw(f", step {last['step']}: {said}" if last else "")

    def end(self, run: Run) -> None:
        """A run has ended."""
        record = run.record
        self._left.remove((record.seed, record.arm))
        self._seconds[record.arm].append(record.seconds)
        outcome = record.problem or f"{self._plan.metric} {run.metric:.5g}"
        left = self._eta()
        self._line(f"{self._count()} {record.arm}, seed {record.seed}: {outcome}, {record.seconds:.1f} s{f'; about {left} left' if left else ''}")

    def _count(self) -> str:
        total = len(self._plan.order())
        return f"{total - len(self._left)}/{total}"

    def _eta(self) -> str:
        """From the mean time of each arm; of all arms where one has none yet."""
        known = [s for seconds in self._seconds.values() for s in seconds]
        if not known or not self._left:
            return ""
        means = {arm: sum(s) / len(s) for arm, s in self._seconds.items()}
        seconds = sum(means.get(arm, sum(known) / len(known)) for _, arm in self._left)
        return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"

    def _draw(self, more: str = "") -> None:
        if self._bar is not None:
            left = self._eta()
            description = f"{self._text}, {time.monotonic() - self._began:.0f} s{more}{f'; about {left} left' if left else ''}"
            self._bar.update(self._task, completed=len(self._plan.order()) - len(self._left), description=description)
            self._bar.refresh()

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
            self._draw()
        else:
            self._output.write(text + "\n")
            self._output.flush()


def _last_report(path: Path) -> dict[str, Any] | None:
    """The last whole report, without reading all of them."""
    try:
        with path.open("rb") as file:
            file.seek(-min(_TAIL_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
            lines = file.read().decode("utf-8", "replace").split("\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        if line.startswith('{"step"'):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def show(result: Result, output: IO[str]) -> None:
    """The verdicts in words, then the figures, then what is missing and what was not controlled."""
    from rich.console import Console

    console = Console(file=output, width=None if output.isatty() else 150, highlight=False, markup=False)
    plan = result.plan
    for arm in result.arms:
        if arm.judged is not None:
            console.print(f"{arm.arm} against {plan.baseline}: {arm.judged.words}")
    if plan.mode == "shadow":
        _show_ranking(result, console)
        return
    advice = recommend(result)
    console.print(f"recommendation: {advice.words}  ({advice.setting})")
    console.print()
    console.print(_table(result))
    console.print(rule(result))
    if result.target is not None and any(arm.num_reached is not None for arm in result.arms):
        console.print(f"time to target: median of the seconds until {plan.metric} was {result.target:.5g}, of the runs that got there")
    _show_notes(result, console)


def _show_notes(result: Result, console: Any) -> None:
    for title, lines in (("warning", result.warnings), ("missing", result.missing), ("not controlled", result.not_controlled)):
        for line in lines:
            console.print(f"{title}: {line}")


def _show_ranking(result: Result, console: Any) -> None:
    from rich.table import Table

    table = Table(title=f"{where(result.plan)}; beside exact training, the nearest to the exact mean gradient first")
    for heading in ("arm", "vNMSE", "cosine", "residual/gradient", "encode ms", "decode ms", "wire bytes/step"):
        table.add_column(heading, justify="left" if heading == "arm" else "right", overflow="fold")
    for each in result.ranking:
        figures = (f"{each.vnmse:.3g}", f"{each.cosine:.4f}", f"{each.residual_ratio:.3g}", f"{each.encode_ms:.2f}", f"{each.decode_ms:.2f}")
        table.add_row(each.arm, *figures, f"{each.wire_bytes:,.0f}")
    console.print(table)
    dense = result.arms[0].wire_bytes_per_step
    console.print("vNMSE: squared distance from the exact mean gradient over its squared norm; all figures are means over the steps, times and bytes rank 0's.")
    if dense is not None:
        console.print(f"The exact exchange itself: {dense:,.0f} wire bytes/step.")
    _show_notes(result, console)


def _table(result: Result) -> Any:
    from rich.table import Table

    metric = result.plan.metric
    table = Table(title=f"{where(result.plan)}, {result.plan.seeds} seeds")
    headings = ("arm", "runs", metric, "difference", "ms/step", "step time ratio", "wire bytes/step", "exposed ms/step", "time to target")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "arm" else "right", overflow="fold")
    for arm in result.arms:
        table.add_row(*_row(arm))
    return table


def _row(arm: ArmResult) -> list[str]:
    judged = arm.judged
    mean = "-" if arm.metric_mean is None else f"{arm.metric_mean:.5g}" + (f" ± {arm.metric_sd:.2g}" if arm.metric_sd is not None else "")
    return [
        arm.arm,
        f"{arm.num_good}/{arm.num_planned}",
        mean,
        _with_bounds(judged.difference, judged.difference_interval, "+.3g") if judged else "",
        number(arm.step_ms, ".2f"),
        _with_bounds(judged.time_ratio, judged.time_ratio_interval, ".3f") if judged else "",
        number(arm.wire_bytes_per_step, ",.0f"),
        number(arm.exposed_ms_per_step, ".2f"),
        f"{number(arm.target_seconds, '.1f')} s ({arm.num_reached} of {arm.num_good})" if arm.num_reached is not None else "-",
    ]


def _with_bounds(value: float | None, interval: Interval | None, form: str) -> str:
    if value is None:
        return "-"
    return f"{typeset(value, form)}\n{bounds(interval, form)}"
