"""Step time of data-parallel training: hvdlite beside torch DDP on gloo, in turn, on one host and over shaped links.

python benchmarks/training.py --python .venv-mpich/bin/python --rates none 1gbit 100mbit --hosts 2 4 --models mlp
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from hosts import INTERFACE, Hosts, why_not

HERE = Path(__file__).parent
OURS = ("none", "fp16", "int8", "topk:density=0.01", "powersgd:rank=4")
PEERS = ("ddp none", "ddp fp16", "ddp powersgd4")


def run_ours(python: str, hosts: Hosts | None, ranks: int, model: str, arms: list[str], steps: int) -> dict[str, float]:
    """One job of hvdlite that trains every arm in turn; rank 0's median step time each, and that of one process."""
    command = [python, str(HERE / "training_worker.py"), "hvdlite", model, str(steps), *arms]
    if hosts is None:
        line, extra = [python, "-m", "hvdlite", "run", "-np", str(ranks), "--no-prefix", *command[1:]], {}
    else:
        line, extra = hosts.mpiexec(str(Path(python).parent / "mpiexec"), command)
    return _figures(subprocess.run(line, env=os.environ | extra | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=600))


def run_peers(python: str, hosts: Hosts | None, ranks: int, model: str, arms: list[str], steps: int) -> dict[str, float]:
    """The same with torch DDP on gloo."""
    processes = []
    for rank in range(ranks):
        address = hosts.addresses[0] if hosts else "127.0.0.1"
        network = {"GLOO_SOCKET_IFNAME": INTERFACE} if hosts else {}
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": address, "MASTER_PORT": "29531", "OMP_NUM_THREADS": "1", **network}
        command = [python, str(HERE / "training_worker.py"), "ddp", model, str(steps), *arms]
        line = hosts.on(rank, command) if hosts else command
        processes.append(subprocess.Popen(line, env=os.environ | place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [p.communicate(timeout=600) for p in processes]
    return _figures(subprocess.CompletedProcess(processes[0].args, max(p.returncode for p in processes), outputs[0][0], "".join(o[1] for o in outputs)))


def _figures(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    if done.returncode:
        sys.exit(f"{done.args} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable, help="a Python with hvdlite, torch and MPICH (over links, its launcher is used)")
    parser.add_argument("--rates", nargs="+", default=["local", "1gbit"], help="local: one host; others as tc writes them, or none")
    parser.add_argument("--hosts", nargs="+", type=int, default=[2])
    parser.add_argument("--models", nargs="+", default=["mlp"], choices=["mlp", "cnn", "resnet", "lstm"])
    parser.add_argument("--arms", nargs="+", default=list(OURS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--output", default=str(HERE / "results"))
    args = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for model in args.models:
        for rate in args.rates:
            for count in args.hosts:
                with ExitStack() as stack:
                    if rate != "local" and (reason := why_not()):
                        print(f"{model} over {rate}, {count} hosts: left out, {reason}")
                        continue
                    hosts = stack.enter_context(Hosts(count, rate)) if rate != "local" else None
                    table = results.setdefault(f"{model}, {rate}, {count} ranks", {})
                    for repeat in range(args.repeats):
                        jobs = [(run_ours, args.arms), (run_peers, list(PEERS))]
                        for run, arms in jobs if repeat % 2 == 0 else jobs[::-1]:
                            for arm, ms in run(args.python, hosts, count, model, arms, args.steps).items():
                                table.setdefault(arm, []).append(ms)
                show(f"{model}, {rate}, {count} ranks", table)
    Path(args.output).mkdir(parents=True, exist_ok=True)
    environment = {"cores": os.cpu_count(), "machine": platform.platform(), "python": platform.python_version()}
    Path(args.output, "training.json").write_text(json.dumps({"environment": environment, "step_ms": results}, indent=1))


def show(title: str, table: dict[str, list[float]]) -> None:
    """Median step times with their ranges, and the ratio to DDP without compression."""
    base = statistics.median(table["ddp none"])
    print(f"\n{title}: step time in ms, median (min-max), and how many times faster than DDP plain")
    for arm, times in table.items():
        middle = statistics.median(times)
        print(f"  {arm:22} {middle:8.1f}  ({min(times):.1f}-{max(times):.1f})  {base / middle:5.2f}x")


if __name__ == "__main__":
    main()
