"""Where a comparison ran: the machine and the versions; what its ranks said of the job comes from the runs."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from .runs import Run

_PACKAGES = ("numpy", "mpi4py", "torch", "tensorflow", "tensorflow-cpu", "keras", "jax")
_CPUINFO = Path("/proc/cpuinfo")


def machine() -> dict[str, str]:
    """This machine, and the versions of what trains on it."""
    import psutil  # type: ignore[import-untyped]

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    said = _CPUINFO.read_text(encoding="utf-8", errors="replace") if _CPUINFO.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", said, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def job(runs: Sequence[Run]) -> dict[str, str]:
    """What the ranks said of the job: MPI, transport, nodes, settings; where runs differ, every value."""
    said = [run.job for run in runs if run.job]
    keys = dict.fromkeys(key for each in said for key in each)
    return {key: " or ".join(dict.fromkeys(each.get(key, "not set") for each in said)) for key in keys}


def job_differences(runs: Sequence[Run]) -> list[str]:
    """In what the jobs of the runs were not alike, in words."""
    said = [run.job for run in runs if run.job]
    return [f"{key}: not the same in all runs: {values}" for key, values in job(runs).items() if len({each.get(key) for each in said}) > 1]
