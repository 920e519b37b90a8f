"""Step time of data-parallel training: hvdlite beside torch DDP on gloo, in turn, on one host and over shaped links.

python benchmarks/training.py --link-python .venv-mpich/bin/python --runs mlp@local:2 mlp@1gbit:2 resnet@100mbit:4
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from _jobs import Plan, run_job
from _report import MUTED, STRONG, arguments, environment, keep, panels, short, spread, write
from hosts import Hosts, why_not

OURS = ("none", "fp16", "int8", "topk:density=0.01", "powersgd:rank=4")
PEERS = ("ddp none", "ddp fp16", "ddp powersgd4")
COUNTERPART = {"none": "ddp none", "fp16": "ddp fp16", "powersgd:rank=4": "ddp powersgd4"}
ONE_PROCESS = "one process"
LOCAL = "local"
RUNS = (
    "mlp@local:1", "cnn@local:1", "mlp@local:2", "small-mlp@local:2", "cnn@local:2", "resnet@local:2", "lstm@local:2",
    "mlp@10gbit:2", "mlp@1gbit:2", "resnet@1gbit:2", "lstm@1gbit:2", "mlp@100mbit:2", "mlp@10gbit:4", "mlp@1gbit:4", "mlp@100mbit:4",
)  # fmt: skip
NOTES = (
    "Milliseconds a step: median (smallest-largest) of the rounds, the arms in turn in the same processes. One thread a rank.",
    "one process is bare torch on one rank while the others wait. At size 1 (`@local:1`) hvdlite's optimizer runs beside it.",
    "Samples/s are those of all ranks together. against: the other's time for a sample divided by this one's; above 1 this one is faster."
    " best of DDP is its fastest arm, compressed or not.",
    "forward + wire: the forward pass, and this rank's bytes at the rate of the line; no plain exchange that begins with the backward pass can end sooner.",
)
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass
class Run:
    """A model, where it is trained (``local``, or the rate of the links as tc writes it), on how many ranks; and what was measured."""

    model: str
    rate: str
    ranks: int
    found: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.model}@{self.rate}:{self.ranks}"

    @property
    def where(self) -> str:
        """For people."""
        return f"one host, {self.ranks} rank{'s' * (self.ranks > 1)}" if self.rate == LOCAL else f"{self.ranks} hosts, {self.rate}"

    @property
    def arms(self) -> list[str]:
        """What is compared."""
        return [ONE_PROCESS, OURS[0]] if self.ranks == 1 else [ONE_PROCESS, *OURS, *PEERS]

    @property
    def median_ms(self) -> dict[str, float]:
        """By arm."""
        return {arm: statistics.median(ms) for arm, ms in self.found["step_ms"].items()}

    @property
    def wire_ms(self) -> float | None:
        """The forward pass and the plain arm's bytes at the rate of the line; None without a line."""
        if self.rate == LOCAL:
            return None
        number, unit = re.fullmatch(r"([\d.]+)(\w+)", self.rate).groups()  # type: ignore[union-attr]
        return statistics.median(self.found["forward_ms"]) + 8e3 * self.found["step_bytes"][OURS[0]] / (float(number) * _BITS[unit])


def parsed(text: str) -> Run:
    match = re.fullmatch(r"([\w-]+)@(local|[\d.]+[kmg]bit):(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no run; MODEL@PLACE:RANKS is expected, with a place that is local or a rate; e.g. mlp@1gbit:2")
    return Run(match[1], match[2], int(match[3]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python of the ranks of one host")
    parser.add_argument("--link-python", help="a Python with MPICH, whose launcher is used over links; without it, those are left out")
    parser.add_argument("--runs", nargs="+", type=parsed, default=list(map(parsed, RUNS)), metavar="MODEL@PLACE:RANKS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block-seconds", type=float, default=0.3, help="how long each arm gets its turn, at least one step")
    args = arguments(parser, {"rounds": 2, "block_seconds": 0.1, "runs": list(map(parsed, ("small-mlp@local:2", "cnn@10gbit:2")))})
    obstacle = why_not() or ("needs --link-python, a Python with MPICH" if args.link_python is None else None)
    left_out = [run for run in args.runs if run.rate != LOCAL and obstacle]
    runs = [run for run in args.runs if run not in left_out]
    plan = Plan("training", len(runs))
    for run in runs:
        with plan.part(f"{run.model}, {run.where}"), ExitStack() as stack:
            hosts = None if run.rate == LOCAL else stack.enter_context(Hosts(run.ranks, run.rate))
            python = args.python if hosts is None else args.link_python
            run.found = run_job(python, run.ranks, "training_worker.py", [run.model, args.rounds, args.block_seconds, *run.arms], hosts=hosts)
    runs = [run for run in runs if run.found]
    if runs:
        report(args, runs, [f"left out: {', '.join(map(str, left_out))}: {obstacle}"] if left_out else [])
    plan.end()


def report(args: argparse.Namespace, runs: list[Run], left_out: list[str]) -> None:
    where = keep("training", args, {str(run): run.found for run in runs}, environment(filter(None, (args.python, args.link_python))))
    crowded = sorted({run.ranks for run in runs if run.ranks > where["cores"]})
    notes = [*NOTES, *left_out, *(f"{ranks} ranks share {where['cores']} cores: compute is crowded, whatever the link." for ranks in crowded)]
    write("training", "Training steps", args, table(runs), notes, draw(runs), where)


def table(runs: list[Run]) -> list[list[str]]:
    against = [f"against {what}" for what in ("best of DDP", "same of DDP", "one process")]
    head = ["model", "where", "arm", "step, ms", "samples/s", *against, "MB sent a step", "forward + wire, ms"]
    return [head, *(_row(run, arm) for run in runs for arm in run.found["step_ms"])]


def _row(run: Run, arm: str) -> list[str]:
    middle, ranks = run.median_ms, 1 if arm == ONE_PROCESS else run.ranks
    peers = [middle[peer] for peer in PEERS if peer in middle]
    against = [f"{min(peers) / middle[arm]:.2f}x" if peers and arm != ONE_PROCESS else ""]
    against.append(f"{middle[COUNTERPART[arm]] / middle[arm]:.2f}x" if COUNTERPART.get(arm) in middle else "")
    against.append(f"{ranks * middle[ONE_PROCESS] / middle[arm]:.3g}x")
    sent, wire_ms = run.found["step_bytes"].get(arm), run.wire_ms if arm == OURS[0] else None
    figures = [spread(run.found["step_ms"][arm]), short(1e3 * ranks * run.found["batch"] / middle[arm])]
    wire = ["" if sent is None else f"{sent / 1e6:.3g}", "" if wire_ms is None else short(wire_ms)]
    return [run.model, run.where, f"hvdlite {arm}" if arm in OURS else arm, *figures, *against, *wire]


def draw(runs: list[Run]) -> Any:
    figure, axes = panels([f"{run.model}, {run.where}" for run in runs], 4, (4.2, 2.7))
    arms = [ONE_PROCESS, *OURS, *PEERS]
    colour = dict(zip(arms, (MUTED[4], *STRONG[: len(OURS)], *MUTED), strict=False))
    for axis, run in zip(axes, runs, strict=True):
        middle = run.median_ms
        here = [arm for arm in arms if arm in middle]
        errors = [[middle[arm] - min(run.found["step_ms"][arm]) for arm in here], [max(run.found["step_ms"][arm]) - middle[arm] for arm in here]]
        names = [f"hvdlite {arm}" if arm in OURS else arm for arm in here]
        bars = axis.barh(names, [middle[arm] for arm in here], color=[colour[arm] for arm in here], xerr=errors, ecolor="#333333", capsize=2)
        axis.bar_label(bars, [short(middle[arm]) for arm in here], padding=3, fontsize=7)
        axis.margins(x=0.15)
        if run.wire_ms is not None:
            limit = axis.axvline(run.wire_ms, color="black", linestyle=":", label="forward + wire time of the plain arm")
        axis.invert_yaxis()
        axis.set_xlabel("ms a step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", alpha=0.3)
    if any(run.wire_ms is not None for run in runs):
        figure.legend(handles=[limit], loc="outside lower center")
    return figure


if __name__ == "__main__":
    main()
