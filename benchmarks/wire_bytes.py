"""Do the bytes that hvdlite counts as sent agree with the kernel's own counter of the link, for every compressor?

python benchmarks/wire_bytes.py [--python .venv-mpich/bin/python]. Each rank is on a host of its own; needs root (see docs/ab.md). Fails if they differ by
more than 3 %.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from _jobs import Plan, run_job
from _report import STRONG, arguments, environment, keep, panels, write
from hosts import why_not

from hvdlite import compression

LIMIT = 0.03
ONE_BUCKET = {"HVDLITE_BUCKET_BYTES": str(1 << 30)}
NOTES = (
    "sent: bytes of all of a rank's exchanges by hvd.metrics()['wire_bytes']; kernel: what its interface has transmitted meanwhile, everything included: "
    "MPI's own headers, TCP/IP's and Ethernet's (as the kernel counts a segment that the card would cut up: once), acknowledgements of what it received, "
    "negotiation, and the barrier at the end. excess: kernel over sent, the worst of the ranks.",
    "The payloads are large: requests of less than 16 KiB for each rank are collectives of the MPI library, by whose algorithms some ranks send more than "
    "others.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1024, help="of the square matrices that are exchanged")
    parser.add_argument("--matrices", type=int, default=8)
    args = arguments(parser, {"ranks": [2], "steps": 3})
    if obstacle := why_not():
        sys.exit(f"wire_bytes: {obstacle}")
    found: dict[int, Any] = {}
    plan = Plan("wire_bytes", len(args.ranks))
    options = [args.steps, args.rows, args.matrices, *compression.names()]
    for ranks in args.ranks:
        with plan.part(f"{ranks} hosts"):
            found[ranks] = run_job(args.python, ranks, "wire_bytes_worker.py", options, link=args.link, settings=ONE_BUCKET)
    if found:
        where = keep("wire_bytes", args, found, environment([args.python]))
        write("wire_bytes", f"Bytes counted, and bytes on a link of {args.link}", args, table(found), NOTES, draw(found), where)
        plan.failed += [f"{ranks} hosts: {name} differs by {worst:.1%}" for ranks, name, worst in excesses(found) if abs(worst) > LIMIT]
    plan.end()


def excesses(found: dict[int, Any]) -> list[tuple[int, str, float]]:
    """``(ranks, compressor, kernel over counted - 1)``, of the rank where it is farthest from 0."""
    return [
        (ranks, name, max((rank["kernel"] / rank["wire_bytes"] - 1 for rank in by_rank), key=abs))
        for ranks, row in found.items()
        for name, by_rank in row.items()
    ]


def table(found: dict[int, Any]) -> list[list[str]]:
    rows = [["hosts", "compressor", "sent, MB", "kernel, MB", "excess"]]
    for ranks, name, worst in excesses(found):
        first = found[ranks][name][0]
        rows.append([str(ranks), name, f"{first['wire_bytes'] / 1e6:.2f}", f"{first['kernel'] / 1e6:.2f}", f"{worst:+.2%}"])
    return rows


def draw(found: dict[int, Any]) -> Any:
    figure, axes = panels([f"{ranks} hosts" for ranks in found], 3, (4.2, 3))
    for axis, ranks in zip(axes, found, strict=True):
        here = [(name, 100 * worst) for of, name, worst in excesses(found) if of == ranks]
        bars = axis.barh([name for name, _ in here], [percent for _, percent in here], color=STRONG[1])
        axis.bar_label(bars, [f"{percent:.2f}" for _, percent in here], padding=3, fontsize=7)
        axis.axvline(100 * LIMIT, color="black", linestyle=":")
        axis.invert_yaxis()
        axis.set_xlabel("kernel over counted, %", fontsize=8)
        axis.tick_params(labelsize=8)
    return figure


if __name__ == "__main__":
    main()
