"""What hvdlite.keras.DataParallel costs a single process: a fit with it, one without, and a second one without as a control, in turn.

python benchmarks/keras_callback.py --backends torch jax
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from _jobs import Plan, run_alone
from _report import MUTED, STRONG, arguments, environment, keep, panels, short, spread, write

BACKENDS = ("tensorflow", "torch", "jax")
BARE, WITH, AGAIN = "fit", "fit with DataParallel", "fit again"
WALL, CPU = "wall_ms", "cpu_ms"
NOTES = (
    "Milliseconds a step of an MLP 784-512-512-10 with 64 samples, SGD with momentum: median (smallest-largest) of the rounds, a fit of each arm in each.",
    "CPU: what the process computed, all its threads; it does not see what else the machine does, nor waiting, of which one process has none.",
    "over fit: the median of the rounds' ratios to the fit without a callback. The control differs from that fit in nothing: it shows the noise.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python that runs the fits")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=100, help="of a fit")
    args = arguments(parser, {"rounds": 1, "steps": 5, "backends": ["torch"]})
    plan, found = Plan("keras_callback", len(args.backends)), {}
    for backend in args.backends:
        with plan.part(f"Keras on {backend}"):
            found[backend] = run_alone(args.python, "keras_callback_worker.py", [backend, args.rounds, args.steps])
    if found:
        where = keep("keras_callback", args, found, environment([args.python]))
        write("keras_callback", "One process with DataParallel", args, table(found), NOTES, draw(found), where)
    plan.end()


def table(found: dict[str, Any]) -> list[list[str]]:
    rows = [["backend", "arm", "step, ms", "over fit", "CPU, ms", "over fit"]]
    for backend, clocks in found.items():
        for arm in clocks[WALL]:
            cells = [cell for arms in clocks.values() for cell in (spread(arms[arm]), "" if arm == BARE else f"{over_bare(arms, arm):+.1f} %")]
            rows.append([backend, arm, *cells])
    return rows


def over_bare(arms: dict[str, list[float]], arm: str) -> float:
    """Per cent by which an arm takes longer than a bare fit."""
    return 100 * (statistics.median(ours / bare for ours, bare in zip(arms[arm], arms[BARE], strict=True)) - 1)


def draw(found: dict[str, Any]) -> Any:
    figure, axes = panels(list(found), 3, (3.6, 1.8))
    for axis, clocks in zip(axes, found.values(), strict=True):
        arms = clocks[CPU]
        over = {arm: over_bare(arms, arm) for arm in (WITH, AGAIN)}
        bars = axis.barh(list(over), list(over.values()), color=[STRONG[0], MUTED[0]])
        axis.bar_label(bars, [f"{short(value)} %" for value in over.values()], padding=3, fontsize=7)
        axis.axvline(0, color="#333333", linewidth=0.8)
        axis.margins(x=0.5)  # for the labels, which lie left of negative bars
        axis.invert_yaxis()
        axis.set_xlabel("per cent of CPU time over a fit without callback", fontsize=8)
        axis.tick_params(labelsize=8)
    return figure


if __name__ == "__main__":
    main()
