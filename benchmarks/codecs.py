"""How fast are the compressors, with and without the compiled loops, beside memcpy, torch's own operations and DDP's hooks?

python benchmarks/codecs.py. One thread. Figures are GB of float32 a second, for encoding plus decoding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from _jobs import Plan, run_alone
from _report import MUTED, STRONG, arguments, environment, keep, logarithmic, panels, short, spread, write

WAYS = ("compiled", "numpy", "torch", "DDP hook")
NOTES = (
    "GB of float32 a second, one thread: median (slowest-fastest). compiled and numpy are hvdlite with and without its compiled loops, torch is the plain "
    "expression of the same in torch.",
    "A codec encodes and decodes once. An exchange is all the work of one of 2 ranks: hvdlite's answers are the rank's own payloads, read where they "
    "lie, and DDP's hook runs in a world of one on gloo, so neither waits for a wire. Both do powersgd with error feedback, on the same square matrices. "
    "For fp16 and bf16 hvdlite sums in float32 and encodes again, where DDP sums in 16 bits: hvdlite does more there.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--elements", type=int, default=8 << 20)
    parser.add_argument("--matrix-rows", type=int, default=1024, help="the exchanges are of square matrices of as many rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--density", type=float, default=0.01)
    args = arguments(parser, {"elements": 1 << 18, "matrix_rows": 256, "rounds": 2})
    plan, found = Plan("codecs", 1), {}
    with plan.part("one process"):
        found = run_alone(sys.executable, "codecs_worker.py", [args.elements, args.density, args.rounds, args.matrix_rows])
    if found:
        gigabytes = 4 * args.elements / 1e9
        speeds = {name: {way: [gigabytes / (1e-3 * t) for t in ms] for way, ms in row.items()} for name, row in found.items()}
        title = f"Codecs and exchanges of {args.elements:,} float32"
        where = keep("codecs", args, {"elements": args.elements, "GB/s": speeds}, environment())
        write("codecs", title, args, table(speeds), NOTES, draw(speeds), where)
    plan.end()


def table(speeds: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    copying = statistics.median(speeds["memcpy"]["compiled"])
    rows = [["GB/s", *WAYS, "against torch", "against DDP hook", "of memcpy"]]
    for name, row in speeds.items():
        middle = {way: statistics.median(values) for way, values in row.items()}
        against = [f"{short(middle['compiled'] / middle[peer])}x" if peer in row else "" for peer in WAYS[2:]]
        rows.append([name, *(spread(row[way]) if way in row else "" for way in WAYS), *against, f"{middle['compiled'] / copying:.0%}"])
    return rows


def draw(speeds: dict[str, dict[str, list[float]]]) -> Any:
    figure, (axis,) = panels(["encode + decode, or a rank's work for a whole exchange; one thread"], 1, (9, 8.5))
    colour = dict(zip(WAYS, (STRONG[0], STRONG[1], *MUTED), strict=False))
    height, names = 0.2, [name for name in speeds if name != "memcpy"]
    for number, way in enumerate(WAYS):
        here = [(place, speeds[name][way]) for place, name in enumerate(names) if way in speeds[name]]
        middle = [statistics.median(values) for _, values in here]
        axis.barh(
            [p + (number - 1.5) * height for p, _ in here],
            middle,
            height,
            color=colour[way],
            label=way if "DDP" in way or way == "torch" else f"hvdlite, {way}",
        )
    axis.axvline(statistics.median(speeds["memcpy"]["compiled"]), color="black", linestyle=":", label="memcpy")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    logarithmic(axis, "x")
    axis.set_xlabel("GB of float32 a second")
    axis.legend(loc="lower right")
    return figure


if __name__ == "__main__":
    main()
