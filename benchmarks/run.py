"""Run the benchmarks, one after the other: each leaves a table, a plot and its figures in benchmarks/results.

python benchmarks/run.py [NAMES] [--quick] --mpich .venv-mpich/bin/python
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("collectives", "codecs", "training", "tensorflow_training", "keras_callback", "negotiation", "compare_mpi", "wire_bytes", "shadow_ranking")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="as little as possible of each: shows that it runs, and no figures to rely on")
    parser.add_argument("--python", default=sys.executable, help="the Python of ranks on one host")
    parser.add_argument("--mpich", help="a Python with MPICH: for ranks on several hosts, and for comparison; without it, those are left out")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder of the reports")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(NAMES)):
        parser.error(f"{', '.join(unknown)} is no benchmark; choose of {', '.join(NAMES)}")
    failed, begun = [], time.monotonic()
    for number, name in enumerate(args.names):
        left = ", ".join(args.names[number + 1 :]) or "nothing"
        _say(f"{name} (after it: {left})")
        start = time.monotonic()
        done = subprocess.run(command(name, args), check=False)
        _say(f"{name} {'failed' if done.returncode else 'done'} after {time.monotonic() - start:.0f} s, {time.monotonic() - begun:.0f} s in all")
        failed += [name] * bool(done.returncode)
    if failed:
        sys.exit(f"bench: failed, in part or as a whole: {', '.join(failed)}")


def command(name: str, args: argparse.Namespace) -> list[str]:
    """The command line of one benchmark."""
    training = ["--python", args.python, *(["--link-python", args.mpich] if args.mpich else [])]
    special = {
        "collectives": ["--python", args.python],
        "training": training,
        "tensorflow_training": training,
        "keras_callback": ["--python", args.python],
        "negotiation": ["--python", args.python],
        "wire_bytes": ["--python", args.python],
        "compare_mpi": [args.python, *([args.mpich] if args.mpich else [])],
    }
    return [sys.executable, str(HERE / f"{name}.py"), *special.get(name, []), "--output", args.output, *(["--quick"] if args.quick else [])]


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
