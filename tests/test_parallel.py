"""Runs tests/parallel under a real MPI: every MPI at hand, 2, 3 and 4 ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARALLEL = Path(__file__).parent / "parallel"
LIMIT_S = 600


def interpreters() -> dict[str, str]:
    """MPI -> a Python that loads it: ``HVDLITE_TEST_PYTHONS="openmpi=... mpich=..."``, or just this Python."""
    named = os.environ.get("HVDLITE_TEST_PYTHONS", f"this={sys.executable}")
    return dict(pair.split("=", 1) for pair in named.split())


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("mpi", interpreters())
def test_on_ranks(mpi: str, size: int) -> None:
    command = [interpreters()[mpi], "-m", "hvdlite", "run", "-np", str(size), "-m", "pytest", "-q", "-x", str(PARALLEL)]
    done = subprocess.run(command, cwd=PARALLEL.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-20000:]
    assert done.stdout.count(" passed") >= size, done.stdout[-3000:]
