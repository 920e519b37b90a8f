"""Runs tests/parallel under a real MPI: every MPI at hand, 2, 3 and 4 ranks; and again without the shared window, and without the compiled loops.

What needs TensorFlow runs in jobs of its own, so that the others do not pay for its import, and on one MPI, which it never sees.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.compression import names

PARALLEL = Path(__file__).parent / "parallel"
WITH_TENSORFLOW = PARALLEL / "with_tensorflow"
LIMIT_S = 600


@pytest.mark.parametrize(
    ("size", "options"),
    [(2, []), (3, []), (4, []), (3, ["--transport", "mpi"]), (2, ["--kernels", "off"])],
    ids=["2", "3", "4", "3-mpi", "2-no-kernels"],
)
def test_on_ranks(mpi_python: str, size: int, options: list[str]) -> None:
    run(mpi_python, size, [*options, "-m", "pytest", "-q", "-x", str(PARALLEL), "--ignore", str(WITH_TENSORFLOW)])


@pytest.mark.parametrize(("size", "files"), [(2, ""), (3, ""), (4, "test_tensorflow_collectives.py")], ids=["2", "3", "4"])
def test_tensorflow_on_ranks(size: int, files: str) -> None:
    run(sys.executable, size, ["-m", "pytest", "-q", "-x", str(WITH_TENSORFLOW / files)])


def run(python: str, size: int, options: list[str]) -> None:
    command = [python, "-m", "hvdlite", "run", "-np", str(size), *options]
    done = subprocess.run(command, cwd=PARALLEL.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-20000:]
    assert done.stdout.count(" passed") >= size, done.stdout[-3000:]


LOSSES = """
import hashlib, sys
import torch
import hvdlite.torch as hvd
torch.set_num_threads(1)
hvd.init()
for spec in sys.argv[1:]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 200), torch.nn.ReLU(), torch.nn.Linear(200, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters(), spec)
    hvd.broadcast_parameters(model.state_dict(), 0)
    losses = []
    for step in range(20):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1000 * step + hvd.rank()))
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss).hex())
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    assert len(set(hvd.allgather_object(weights))) == 1
    if hvd.rank() == 0:
        print("LOSSES", spec, *losses, weights)
"""


def test_losses_are_the_same_bits_with_and_without_the_compiled_loops(mpi_python: str, tmp_path: Path) -> None:
    """And the same through memory and through MPI."""
    script = tmp_path / "losses.py"
    script.write_text(LOSSES)
    found = set()
    for options in ([], ["--kernels", "off"], ["--transport", "mpi"]):
        command = [mpi_python, "-m", "hvdlite", "run", "-np", "2", "--no-prefix", *options, str(script), *names()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout[-20000:]
        found.add(tuple(line for line in done.stdout.splitlines() if line.startswith("LOSSES")))
    (lines,) = found
    assert len(lines) == len(names())
