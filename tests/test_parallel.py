"""Runs tests/parallel under real MPIs, on 2, 3 and 4 ranks; and again without the shared window, and without the compiled loops.

The first MPI at hand runs everything. What another MPI could change lies below the adapters, so they run on two ranks there; and the loops
change numbers only. ``test_losses...`` then compares trainings with all of them, to the last bit. What needs TensorFlow runs in jobs of its own, so
that the others do not pay for its import.
"""

import os
import subprocess
from pathlib import Path

import pytest
from mpis import PYTEST, interpreters, own_folders

from hvdlite.compression import names

PARALLEL = Path(__file__).parent / "parallel"
LIMIT_S = 600

EVERY = sorted(path.name for path in PARALLEL.glob("test_*.py"))
CORE = [name for name in EVERY if not name.startswith("test_torch_")]
NUMBERS = ["test_collectives.py", "test_rows.py", "test_torch_training.py"]
FOR_TWO = {"test_resources.py"}  # an engine costs the same however many others there are


def runs():
    """``(an MPI, ranks, options, files of tests)``."""
    for number, mpi in enumerate(interpreters()):
        files = EVERY if number == 0 else CORE
        yield pytest.param(mpi, 2, [], EVERY, id=f"{mpi}-2")
        for size, options, how in ((3, [], ""), (4, [], ""), (3, ["--transport", "mpi"], "-mpi")):
            yield pytest.param(mpi, size, options, [name for name in files if name not in FOR_TWO], id=f"{mpi}-{size}{how}")
        if number == 0:
            yield pytest.param(mpi, 2, ["--kernels", "off"], NUMBERS, id=f"{mpi}-2-no-kernels")


@pytest.mark.parametrize(("mpi", "size", "options", "files"), list(runs()))
def test_on_ranks(mpi: str, size: int, options: list[str], files: list[str], tmp_path: Path) -> None:
    run(mpi, size, options, [PARALLEL / name for name in files], tmp_path)


@pytest.mark.parametrize(("size", "file"), [(2, ""), (3, ""), (4, "test_tensorflow_collectives.py")], ids=["2", "3", "4"])
def test_tensorflow_on_ranks(size: int, file: str, tmp_path: Path) -> None:
    run(next(iter(interpreters())), size, [], [PARALLEL / "with_tensorflow" / file], tmp_path)


def run(mpi: str, size: int, options: list[str], files: list[Path], tmp_path: Path) -> None:
    command = [interpreters()[mpi], "-m", "hvdlite", "run", "-np", str(size), *options, *PYTEST, *map(str, files)]
    env = os.environ | own_folders(tmp_path)
    done = subprocess.run(command, cwd=PARALLEL.parents[1], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
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


def test_losses_are_the_same_bits_with_and_without_the_compiled_loops(tmp_path: Path) -> None:
    """And the same through memory and through MPI, whichever it is."""
    script = tmp_path / "losses.py"
    script.write_text(LOSSES)
    first, *others = interpreters().values()
    ways = [(first, []), (first, ["--kernels", "off"]), (first, ["--transport", "mpi"]), *((other, ["--transport", "mpi"]) for other in others)]
    found = set()
    for python, options in ways:
        command = [python, "-m", "hvdlite", "run", "-np", "2", "--no-prefix", *options, str(script), *names()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout[-20000:]
        found.add(tuple(line for line in done.stdout.splitlines() if line.startswith("LOSSES")))
    (lines,) = found
    assert len(lines) == len(names())
