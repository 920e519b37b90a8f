"""How long does an allreduce take, by size: hvdlite's, MPI's, gloo's, Horovod's, and the memory passes that none can do without.

python benchmarks/collectives.py --ranks 2 4
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from _jobs import Plan, run_job
from _report import amount, arguments, colours, environment, keep, line, logarithmic, panels, short, spread, write

WAYS = ("hvdlite bucket", "hvdlite tensor", "MPI.Allreduce", "gloo", "Horovod")
LIMIT = "memcpy"
NOTES = (
    "hvdlite bucket: gradients that lie in the transport's memory, as in training. hvdlite tensor: `hvd.allreduce_` of any other memory. Both through the "
    "engine, negotiation included. All sum in place.",
    "memcpy: every rank copies as many bytes at the same time. That is the limit in place: of P ranks each must read a P-th of every rank's bytes and write "
    "a P-th of every rank's result, so each reads and writes as many bytes as it holds. Small sizes are copied within the cache, where the limit is "
    "latency instead; and libc copies large ones by other instructions, so the ratio may fall below 1 in between.",
    "Milliseconds of the slowest rank a call: median (smallest-largest) of the rounds.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python of the ranks, and with it the MPI")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--bytes", nargs="+", type=int, default=[4 << 10 << shift for shift in range(0, 18, 2)])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--block-seconds", type=float, default=0.05, help="how long each gets its turn, at least one call")
    args = arguments(parser, {"bytes": [4 << 10, 1 << 20], "rounds": 2})
    plan, results = Plan("collectives", len(args.ranks)), {}
    for ranks in args.ranks:
        with plan.part(f"{ranks} ranks"):
            results[ranks] = run_job(args.python, ranks, "collectives_worker.py", [args.rounds, args.block_seconds, *args.bytes])
    if results:
        report(args, results)
    plan.end()


def report(args: argparse.Namespace, results: dict[int, dict[str, dict[str, list[float]]]]) -> None:
    where = keep("collectives", args, results, environment([args.python]))
    crowded = [f"{ranks} ranks share {where['cores']} cores." for ranks in results if ranks > where["cores"]]
    write("collectives", "Allreduce of float32", args, table(results), [*NOTES, *crowded], draw(results), where)


def table(results: dict[int, dict[str, dict[str, list[float]]]]) -> list[list[str]]:
    rows = [["ranks", "size", *(f"{way}, ms" for way in WAYS), f"{LIMIT}, ms", "bucket against best peer", "bucket / memcpy"]]
    for ranks, by_size in results.items():
        for size, found in by_size.items():
            middle = {way: statistics.median(ms) for way, ms in found.items()}
            best_peer = min(ms for way, ms in middle.items() if way in WAYS and not _is_ours(way))
            cells = [spread(found[way]) if way in found else "not installed" for way in (*WAYS, LIMIT)]
            faster, passes = best_peer / middle[WAYS[0]], middle[WAYS[0]] / middle[LIMIT]
            rows.append([str(ranks), amount(int(size)), *cells, f"{short(faster)}x as fast", short(passes)])
    return rows


def draw(results: dict[int, dict[str, dict[str, list[float]]]]) -> Any:
    figure, axes = panels([f"{ranks} ranks" for ranks in results], 2, (6.5, 5))
    colour = colours((*WAYS, LIMIT), _is_ours)
    for axis, by_size in zip(axes, results.values(), strict=True):
        for way in (*WAYS, LIMIT):
            points = {int(size): found[way] for size, found in by_size.items() if way in found}
            if points:
                line(axis, points, way, colour[way], ":" if way == LIMIT else "-")
        axis.set(xscale="log", xlabel="bytes a rank", ylabel="time of an allreduce, ms")
        logarithmic(axis, "y")
        axis.set_xticks(sizes := [int(size) for size in by_size], [amount(size) for size in sizes], rotation=45)
        axis.xaxis.minorticks_off()
        axis.grid(axis="x", alpha=0.3)
    axes[0].legend()
    return figure


def _is_ours(way: str) -> bool:
    return way.startswith("hvdlite")


if __name__ == "__main__":
    main()
