"""Runs tests/parallel under a real MPI: every MPI at hand, 2, 3 and 4 ranks; and again without the shared window, and without the compiled loops."""

import subprocess
from pathlib import Path

import pytest

PARALLEL = Path(__file__).parent / "parallel"
LIMIT_S = 600


@pytest.mark.parametrize(
    ("size", "options"),
    [(2, []), (3, []), (4, []), (3, ["--transport", "mpi"]), (2, ["--kernels", "off"])],
    ids=["2", "3", "4", "3-mpi", "2-no-kernels"],
)
def test_on_ranks(mpi_python: str, size: int, options: list[str]) -> None:
    command = [mpi_python, "-m", "hvdlite", "run", "-np", str(size), *options, "-m", "pytest", "-q", "-x", str(PARALLEL)]
    done = subprocess.run(command, cwd=PARALLEL.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-20000:]
    assert done.stdout.count(" passed") >= size, done.stdout[-3000:]
