"""Which MPI serves hvdlite better on this machine? The same jobs under each, in turn.

python benchmarks/compare_mpi.py .venv/bin/python .venv-mpich/bin/python
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from _jobs import Plan, run_job
from _report import STRONG, arguments, environment, keep, logarithmic, mpi_of, panels, spread, write
from _timing import there_and_back

NOTES = (
    "Milliseconds: median (smallest-largest) of all rounds of all jobs. Models: 784-1024-1024-10 and 16-32 channels on 28x28, 64 samples a rank.",
    "start and end: what a job takes beside its work, imports of torch included.",
)
Times = dict[int, dict[str, dict[str, list[float]]]]  # ranks -> what -> MPI -> milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="with one of the MPIs each")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--jobs", type=int, default=2, help="of each MPI and number of ranks")
    parser.add_argument("--rounds", type=int, default=3, help="in each job")
    parser.add_argument("--block-seconds", type=float, default=0.2, help="how long each thing gets its turn")
    args = arguments(parser, {"jobs": 1, "ranks": [2], "rounds": 1, "block_seconds": 0.05})
    pythons = {mpi_of(python): python for python in args.pythons}
    plan, times = Plan("compare_mpi", args.jobs * len(args.ranks) * len(pythons)), {}
    for ranks in args.ranks:
        for name in there_and_back(pythons, args.jobs):
            with plan.part(f"{name}, {ranks} ranks"):
                start = time.perf_counter()
                found = run_job(pythons[name], ranks, "compare_mpi_worker.py", [args.rounds, args.block_seconds])
                around_ms = 1e3 * (time.perf_counter() - start - found["inside_s"])
                for what, ms in (found["ms"] | {"start and end": [around_ms]}).items():
                    times.setdefault(ranks, {}).setdefault(what, {}).setdefault(name, []).extend(ms)
    if times:
        where = keep("compare_mpi", args, times, environment(pythons.values()))
        write("compare_mpi", "Which MPI", args, table(times, list(pythons)), NOTES, draw(times, list(pythons)), where)
    plan.end()


def table(times: Times, names: list[str]) -> list[list[str]]:
    rows = [["what", "ranks", *(f"{name}, ms" for name in names)]]
    for ranks, by_what in times.items():
        for what, by_name in by_what.items():
            rows.append([what, str(ranks), *(spread(by_name[name]) if name in by_name else "failed" for name in names)])
    return rows


def draw(times: Times, names: list[str]) -> Any:
    figure, axes = panels([f"{ranks} ranks" for ranks in times], 2, (6.5, 4))
    for axis, by_what in zip(axes, times.values(), strict=True):
        for number, name in enumerate(names):
            here = [(place + 0.35 * number, by_name[name]) for place, by_name in enumerate(by_what.values()) if name in by_name]
            axis.barh([place for place, _ in here], [statistics.median(ms) for _, ms in here], 0.35, color=STRONG[number], label=name)
        axis.set_yticks([place + 0.175 * (len(names) - 1) for place in range(len(by_what))], list(by_what))
        axis.invert_yaxis()
        logarithmic(axis, "x")
        axis.set_xlabel("ms")
    axes[0].legend()
    return figure


if __name__ == "__main__":
    main()
