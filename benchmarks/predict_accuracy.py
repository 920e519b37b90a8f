"""How good are the forecasts of hvdlite predict? Against real steps, on 2 and 4 hosts and over links from 100 Mb/s to none.

python benchmarks/predict_accuracy.py --link-python .venv-mpich/bin/python --seconds 150

For each model, number of hosts and link the training is measured on hosts without shaped links, and forecast from that; then it is run over the link. It can be
run in parts: what is done is kept, and after ``--seconds`` it begins nothing more. The same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _jobs import HERE, ONE_THREAD, JobError, run_job
from _report import STRONG, arguments, environment, keep, logarithmic, panels, short, write
from hosts import Hosts, why_not

from hvdlite.launch.hosts import burst_bytes
from hvdlite.link import parse_link
from hvdlite.predict import measured
from hvdlite.predict.forecast import Forecast, forecast
from hvdlite.predict.measure import Wanted, measure
from hvdlite.predict.model import calibrated
from hvdlite.predict.place import Place

MODELS = ("mlp", "cnn")
HOSTS = (2, 4)
UNSHAPED = "none"
RATES = (UNSHAPED, "10gbit", "1gbit", "100mbit")
ARMS = ("none", "fp16", "int8", "topk:density=0.01", "powersgd:rank=4")
PAYLOAD_SHARE = 1448 / 1514  # a token bucket counts a frame without preamble and gap
TRIES = 2
QUIET = 0.05
"""Share of the machine that others may take while something is measured; or it is done again."""
NOTES = (
    "**right**: whether the forecast says rightly faster or slower than `none`. **clear**: the middle halves of the two arms' steps do not overlap in the real "
    "run; where they do, the run itself does not tell which is faster.",
    "**inside**: whether the real median lies in the forecast's 90 % interval.",
    "The hosts share this machine's cores; the forecasts know that (`--cores`). Links are token buckets (tc), whose burst the forecasts know, too.",
)


@dataclass
class Cell:
    """A model on so many hosts over a link: what was forecast, and the milliseconds of single steps by arm."""

    model: str
    hosts: int
    rate: str
    forecast: Forecast | None = None
    step_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """With an equal share of the cores for each host."""
        link = None if self.rate == UNSHAPED else parse_link(self.rate)
        cores = len(os.sched_getaffinity(0)) / self.hosts
        return Place(self.hosts, self.hosts, cores, link, burst_bytes(link) if link else 0.0, PAYLOAD_SHARE)

    def rows(self) -> list[dict[str, Any]]:
        """One an arm."""
        assert self.forecast is not None
        real = {arm: statistics.median(times) for arm, times in self.step_ms.items()}
        found = []
        for arm in self.forecast.arms:
            times, is_baseline = self.step_ms[arm.arm], arm.arm == ARMS[0]
            found.append(
                {
                    "model": self.model,
                    "hosts": self.hosts,
                    "rate": self.rate,
                    "arm": arm.arm,
                    "forecast_ms": arm.step_ms.middle,
                    "low_ms": arm.step_ms.low,
                    "high_ms": arm.step_ms.high,
                    "real_ms": real[arm.arm],
                    "error": arm.step_ms.middle / real[arm.arm] - 1,
                    "inside": arm.step_ms.low <= real[arm.arm] <= arm.step_ms.high,
                    "right": None if is_baseline else (arm.ratio.middle < 1) == (real[arm.arm] < real[ARMS[0]]),
                    "clear": None if is_baseline else _apart(times, self.step_ms[ARMS[0]]),
                    "verdict": arm.verdict,
                    "real_ratio": real[arm.arm] / real[ARMS[0]],
                }
            )
        return found


def _apart(one: Sequence[float], other: Sequence[float]) -> bool:
    (low, _, high), (other_low, _, other_high) = (statistics.quantiles(times, n=4) for times in (one, other))
    return high < other_low or other_high < low


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--link-python", required=True, help="a Python with MPICH, whose launcher is used over links")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--hosts", nargs="+", type=int, default=HOSTS)
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each arm in a real run")
    parser.add_argument("--block-seconds", type=float, default=0.6, help="how long a turn lasts, at least one step")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing more after so long")
    args = arguments(parser, {"models": ["cnn"], "hosts": [2], "rates": [UNSHAPED, "100mbit"], "rounds": 1, "block_seconds": 0.2})
    if obstacle := why_not():
        sys.exit(f"predict_accuracy: {obstacle}")
    os.environ.update(ONE_THREAD)
    folder = args.output / "predict_accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    begun, left = time.monotonic(), []
    cells = [Cell(model, hosts, rate) for model in args.models for hosts in args.hosts for rate in args.rates]
    for cell in cells:
        for path, make in ((_measured_path(folder, cell), measure_one), (_real_path(folder, cell), run_one)):
            if path.exists():
                continue
            if time.monotonic() - begun > args.seconds:
                sys.exit(f"predict_accuracy: {args.seconds:g} s are over; the same command goes on")
            print(f"predict_accuracy: {path.stem}", file=sys.stderr, flush=True)
            if not undisturbed(lambda path, make=make, cell=cell: make(args, cell, path), path):  # type: ignore[misc]
                left.append(path.stem)
    if left:
        sys.exit(f"predict_accuracy: too much else ran for {', '.join(left)}; the same command tries again")
    report(args, cells, folder)


def undisturbed(make: Callable[[Path], float], path: Path) -> bool:
    """Do it, and again while others take too much of the machine; whether it went well in the end."""
    for _ in range(TRIES):
        others = make(path)
        if others <= QUIET:
            return True
        path.unlink()
        print(f"predict_accuracy: {path.stem}: others took {others:.0%} of the machine", file=sys.stderr, flush=True)
    return False


def _busy_seconds() -> float:
    """CPU of everybody, that of the system and of interrupts included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def _measured_path(folder: Path, cell: Cell) -> Path:
    return folder / f"measured.{cell.model}.{cell.hosts}.{cell.rate}.json"


def _real_path(folder: Path, cell: Cell) -> Path:
    return folder / f"real.{cell.model}.{cell.hosts}.{cell.rate}.json"


def measure_one(args: argparse.Namespace, cell: Cell, path: Path) -> float:
    """What hvdlite predict measures, on hosts without shaped links; the share of the machine that others took."""
    python = args.link_python
    command = (python, str(HERE / "predict_script.py"), cell.model, "10000")
    wanted = Wanted(command, cell.hosts, ARMS, (cell.hosts,), 32)
    with Hosts(cell.hosts, UNSHAPED) as hosts:
        mpiexec = str(Path(python).parent / "mpiexec")
        found = measure(wanted, lambda line: None, len(os.sched_getaffinity(0)), lambda line, _: hosts.mpiexec(mpiexec, list(line)))
    measured.keep(found, path)
    return found.others


def run_one(args: argparse.Namespace, cell: Cell, path: Path) -> float:
    """The real steps; the share of the machine that others took."""
    busy, ours, start = _busy_seconds(), _our_seconds(), time.monotonic()
    with Hosts(cell.hosts, cell.rate) as hosts:
        found = run_job(args.link_python, cell.hosts, "predict_accuracy_worker.py", [cell.model, args.rounds, args.block_seconds, *ARMS], hosts=hosts)
    path.write_text(json.dumps(found))
    return (_busy_seconds() - busy - (_our_seconds() - ours)) / (time.monotonic() - start) / len(os.sched_getaffinity(0))


def report(args: argparse.Namespace, cells: list[Cell], folder: Path) -> None:
    for cell in cells:
        kept = measured.load(_measured_path(folder, cell))
        cell.forecast = forecast(kept, cell.place, calibrated(kept), ARMS)
        cell.step_ms = json.loads(_real_path(folder, cell).read_text())["step_ms"]
    rows = [row for cell in cells for row in cell.rows()]
    where = keep("predict_accuracy", args, {"rows": rows, "summary": summary(rows)}, environment([sys.executable, args.link_python]))
    notes = [*(f"**{line}**" for line in in_words(summary(rows))), *NOTES]
    write("predict_accuracy", "Forecasts against real steps", args, table(rows), notes, draw(rows), where)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All figures in a few."""
    asked = [row for row in rows if row["right"] is not None]
    clear = [row for row in asked if row["clear"]]
    surely = [row for row in asked if row["verdict"] != "no telling"]
    return {
        "steps": len(rows),
        "median_error": statistics.median(abs(row["error"]) for row in rows),
        "worst_error": max((abs(row["error"]), row["error"]) for row in rows)[1],
        "inside": sum(row["inside"] for row in rows),
        "signs": len(asked),
        "signs_right": sum(row["right"] for row in asked),
        "clear_signs": len(clear),
        "clear_signs_right": sum(row["right"] for row in clear),
        "sure_signs": len(surely),
        "sure_signs_right": sum(row["right"] for row in surely),
    }


def in_words(found: dict[str, Any]) -> list[str]:
    """For the report."""
    return [
        f"step time: median error {found['median_error']:.1%}, worst {found['worst_error']:+.0%}; {found['inside']} of {found['steps']} inside the interval",
        f"faster or slower: right in {found['clear_signs_right']} of the {found['clear_signs']} comparisons that the real runs tell, "
        f"in {found['signs_right']} of all {found['signs']}, in {found['sure_signs_right']} of the {found['sure_signs']} that the forecast is sure of",
    ]


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    head = ["model", "hosts", "link", "arm", "forecast, ms", "90 %", "real, ms", "error", "inside", "real ratio", "right", "clear"]
    words = {True: "yes", False: "no", None: ""}
    return [
        head,
        *(
            [
                row["model"], str(row["hosts"]), row["rate"], row["arm"], short(row["forecast_ms"]), f"{short(row['low_ms'])}-{short(row['high_ms'])}",
                short(row["real_ms"]), f"{row['error']:+.0%}", words[row["inside"]], f"{row['real_ratio']:.2f}", words[row["right"]], words[row["clear"]],
            ]
            for row in rows
        ),
    ]  # fmt: skip


def draw(rows: Sequence[dict[str, Any]]) -> Any:
    groups = sorted({(row["model"], row["hosts"]) for row in rows})
    figure, axes = panels([f"{model}, {hosts} hosts" for model, hosts in groups], 2, (4.6, 4.0))
    for axis, group in zip(axes, groups, strict=True):
        for arm, colour in zip(ARMS, STRONG, strict=False):
            mine = [row for row in rows if (row["model"], row["hosts"]) == group and row["arm"] == arm]
            middles = [row["forecast_ms"] for row in mine]
            errors = [[m - row["low_ms"] for m, row in zip(middles, mine, strict=True)], [row["high_ms"] - m for m, row in zip(middles, mine, strict=True)]]
            axis.errorbar([row["real_ms"] for row in mine], middles, yerr=errors, fmt="o", markersize=4, color=colour, label=arm)
        limits = [min(axis.get_xlim()[0], axis.get_ylim()[0]), max(axis.get_xlim()[1], axis.get_ylim()[1])]
        limits[0] = max(limits[0], 0.8 * min(row["low_ms"] for row in rows if (row["model"], row["hosts"]) == group))
        axis.plot(limits, limits, color="#888888", linewidth=0.8)
        axis.set(xlim=limits, ylim=limits, xlabel="measured, ms a step", ylabel="forecast, ms a step")
        for which in "xy":
            logarithmic(axis, which)
    axes[0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    try:
        main()
    except JobError as error:
        sys.exit(f"predict_accuracy: {error}")
