"""Which MPI serves hvdlite better on this machine? Runs the same jobs under each, in turn, and prints medians with their ranges.

make bench, or: python benchmarks/compare_mpi.py openmpi=.venv/bin/python mpich=.venv-mpich/bin/python
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WORKER = HERE / "compare_mpi_worker.py"


def run(python: str, ranks: int) -> dict[str, float]:
    """One job; what its rank 0 measured, and how long the whole took."""
    start = time.perf_counter()
    done = subprocess.run(
        [python, "-m", "hvdlite", "run", "-np", str(ranks), "--no-prefix", str(WORKER)], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    figures = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    figures["start_and_end_s"] = time.perf_counter() - start - figures.pop("inside_s")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default=str(HERE / "results"))
    args = parser.parse_args()
    pythons = dict(pair.split("=", 1) for pair in args.pythons)
    table: dict[str, dict[str, list[float]]] = {}
    for repeat in range(args.repeats):
        for ranks in args.ranks:
            for name in list(pythons) if repeat % 2 == 0 else list(pythons)[::-1]:  # A B B A: drift of the machine cancels
                for key, value in run(pythons[name], ranks).items():
                    table.setdefault(f"{key}, {ranks} ranks", {}).setdefault(name, []).append(value)
    print(f"{'':44}" + "".join(f"{name:>30}" for name in pythons))
    for key, by_name in table.items():
        cells = [f"{statistics.median(v):.4g} ({min(v):.4g}-{max(v):.4g})" for v in by_name.values()]
        print(f"{key:44}" + "".join(f"{cell:>30}" for cell in cells))
    environment = {"cores": os.cpu_count(), "machine": platform.platform(), "python": platform.python_version()}
    Path(args.output).mkdir(parents=True, exist_ok=True)
    Path(args.output, "compare_mpi.json").write_text(json.dumps({"environment": environment, "figures": table}, indent=1))


if __name__ == "__main__":
    main()
