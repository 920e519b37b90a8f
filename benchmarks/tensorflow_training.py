"""Step time of a custom training loop: hvdlite beside tf.distribute.MultiWorkerMirroredStrategy, in turn, on one host and over shaped links.

python benchmarks/tensorflow_training.py --link-python .venv-mpich/bin/python --runs mlp@local:2 mlp@1gbit:2
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import Any

from _jobs import Plan, run_job
from _report import MUTED, STRONG, arguments, environment, keep, panels, short, spread, write
from hosts import Hosts, why_not
from training import LOCAL, ONE_PROCESS, Run, parsed

OURS = ("none", "fp16", "powersgd:rank=4")
PEER = "MultiWorkerMirroredStrategy"
RUNS = ("mlp@local:1", "cnn@local:1", "mlp@local:2", "cnn@local:2", "mlp@1gbit:2")
NOTES = (
    "Milliseconds a step: median (smallest-largest) of the rounds, the arms in turn in the same processes. One intra-op thread a rank.",
    "one process is bare TensorFlow on one rank while the others wait. At size 1 (`@local:1`) hvdlite's tape runs beside it.",
    "Every arm is one tf.function with Keras' SGD. The strategy runs on its default for CPUs, a ring over gRPC.",
)


def arms_of(run: Run) -> list[str]:
    """What is compared."""
    return [ONE_PROCESS, OURS[0]] if run.ranks == 1 else [ONE_PROCESS, *OURS, PEER]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python of the ranks of one host")
    parser.add_argument("--link-python", help="a Python with MPICH, whose launcher is used over links; without it, those are left out")
    parser.add_argument("--runs", nargs="+", type=parsed, default=list(map(parsed, RUNS)), metavar="MODEL@PLACE:RANKS", help="of mlp, small-mlp and cnn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--block-seconds", type=float, default=0.5, help="how long each arm gets its turn, at least one step")
    args = arguments(parser, {"rounds": 1, "block_seconds": 0.1, "runs": list(map(parsed, ("small-mlp@local:2",)))})
    obstacle = why_not() or ("needs --link-python, a Python with MPICH" if args.link_python is None else None)
    left_out = [run for run in args.runs if run.rate != LOCAL and obstacle]
    runs = [run for run in args.runs if run not in left_out]
    plan = Plan("tensorflow_training", len(runs))
    for run in runs:
        with plan.part(f"{run.model}, {run.where}"), ExitStack() as stack:
            hosts = None if run.rate == LOCAL else stack.enter_context(Hosts(run.ranks, run.rate))
            python, addresses = (args.python, "-") if hosts is None else (args.link_python, ",".join(hosts.addresses))
            options = [run.model, args.rounds, args.block_seconds, addresses, *arms_of(run)]
            run.found = run_job(python, run.ranks, "tensorflow_training_worker.py", options, hosts=hosts, settings={"TF_CPP_MIN_LOG_LEVEL": "2"})
    runs = [run for run in runs if run.found]
    if runs:
        where = keep("tensorflow_training", args, {str(run): run.found for run in runs}, environment(filter(None, (args.python, args.link_python))))
        notes = [*NOTES, *([f"left out: {', '.join(map(str, left_out))}: {obstacle}"] if left_out else [])]
        write("tensorflow_training", "Training steps in TensorFlow", args, table(runs), notes, draw(runs), where)
    plan.end()


def table(runs: list[Run]) -> list[list[str]]:
    head = ["model", "where", "arm", "step, ms", "samples/s", "against the strategy", "against one process", "MB sent a step"]
    return [head, *(_row(run, arm) for run in runs for arm in run.found["step_ms"])]


def _row(run: Run, arm: str) -> list[str]:
    middle, ranks = run.median_ms, 1 if arm == ONE_PROCESS else run.ranks
    sent = run.found["step_bytes"].get(arm)
    against = [f"{middle[PEER] / middle[arm]:.2f}x" if PEER in middle and arm != ONE_PROCESS else "", f"{ranks * middle[ONE_PROCESS] / middle[arm]:.3g}x"]
    figures = [spread(run.found["step_ms"][arm]), short(1e3 * ranks * run.found["batch"] / middle[arm]), *against]
    return [run.model, run.where, f"hvdlite {arm}" if arm in OURS else arm, *figures, "" if sent is None else f"{sent / 1e6:.3g}"]


def draw(runs: list[Run]) -> Any:
    figure, axes = panels([f"{run.model}, {run.where}" for run in runs], 3, (4.6, 2.4))
    for axis, run in zip(axes, runs, strict=True):
        middle, ms = run.median_ms, run.found["step_ms"]
        colours = [STRONG[OURS.index(arm)] if arm in OURS else MUTED[arm == PEER] for arm in middle]
        errors = [[middle[arm] - min(ms[arm]) for arm in middle], [max(ms[arm]) - middle[arm] for arm in middle]]
        names = [f"hvdlite {arm}" if arm in OURS else arm for arm in middle]
        bars = axis.barh(names, list(middle.values()), color=colours, xerr=errors, ecolor="#333333", capsize=2)
        axis.bar_label(bars, [short(value) for value in middle.values()], padding=3, fontsize=7)
        axis.margins(x=0.15)
        axis.invert_yaxis()
        axis.set_xlabel("ms a step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
