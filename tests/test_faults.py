"""Real jobs in which something goes wrong after training began: every rank is gone soon, the exit code tells, and the last lines say who and why."""

import os
import re
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOON_S = 10.0  # from the fault to the end of the job
START_S = 120.0  # a busy machine starts jobs slowly

TRAIN = """
import os, signal, sys, time
import numpy as np
import hvdlite as hvd

hvd.init()
rank = hvd.rank()
print("pid", os.getpid(), flush=True)
for step in range(5):
    hvd.allreduce(np.ones(1000, np.float32), name="gradients")
hvd.barrier()

def fault():
    {fault}

if rank == 1:
    print("fault", time.time(), flush=True)
    fault()
hvd.allreduce(np.ones(3), name="loss")
for step in range(10_000):
    hvd.allreduce(np.ones(3), name="more")
"""


@dataclass
class Job:
    """A job; its output arrives in files."""

    process: "subprocess.Popen[str]"
    folder: Path
    pids: dict[int, int] = field(default_factory=dict)

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(encoding="utf-8")

    @property
    def everything(self) -> str:
        return f"{self.out}\n{self.err}"

    @property
    def verdict(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("hvdliterun: ")][-2:]

    def until(self, text: str, limit: float = START_S) -> str:
        """Wait for a line; return it."""
        deadline = time.monotonic() + limit
        while True:
            found = next((line for line in self.everything.splitlines() if text in line), None)
            if found is not None:
                self.pids = {int(r): int(p) for r, p in re.findall(r"^\[(\d)\] pid (\d+)", self.out, re.MULTILINE)}
                return found
            assert time.monotonic() < deadline, self.everything
            assert self.process.poll() is None or text in self.everything, self.everything
            time.sleep(0.02)

    def ends(self, after: float, limit: float = SOON_S) -> int:
        """The exit code; the job must end within the limit after the time of the fault."""
        code = self.process.wait(START_S)
        assert time.time() - after < limit, f"{time.time() - after:.1f} s\n{self.everything}"
        alive = [p for p in self.pids.values() if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]
        assert alive == []
        return code


def starter(python: str, folder: Path) -> Iterator[Callable[..., Job]]:
    """Starts trainings; ``fault`` is what rank 1 does in the middle. Nothing of them outlives the test."""
    started: list[Job] = []

    def start(fault: str, size: int = 2, **knobs: str) -> Job:
        path = folder / "train.py"
        path.write_text(TRAIN.replace("{fault}", textwrap.indent(fault, "    ").strip()), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]), **knobs}
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            process = subprocess.Popen(
                [python, "-m", "hvdlite", "run", "-np", str(size), str(path)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        started.append(Job(process, folder))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            for pid in each.pids.values():
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)
            each.process.terminate()
            try:
                each.process.wait(20)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()


@pytest.fixture
def job(mpi_python, tmp_path) -> Iterator[Callable[..., Job]]:
    """Jobs on each MPI: its launcher has a part in how they end."""
    yield from starter(mpi_python, tmp_path)


@pytest.fixture
def waiting_job(any_mpi_python, tmp_path) -> Iterator[Callable[..., Job]]:
    """Jobs on one MPI, for what the ranks find out by themselves."""
    yield from starter(any_mpi_python, tmp_path)


def time_of_fault(job: Job) -> float:
    return float(job.until("[1] fault").split()[-1])


@pytest.mark.parametrize(
    ("fault", "code", "cause"),
    [
        ("raise RuntimeError('out of luck')", 1, r"failed: RuntimeError: out of luck"),
        ("sys.exit(3)", 3, r"called sys\.exit\(3\)"),
        ("os._exit(4)", 4, r"ended with code 4"),
        ("hvd.allreduce_async([np.ones(3)], name='loss'); os.kill(os.getpid(), signal.SIGKILL)", 137, r"was killed by SIGKILL"),
    ],
    ids=["raises", "exits", "exits at once", "is killed in a collective"],
)
def test_one_rank_ends_the_job(job, fault, code, cause):
    running = job(fault)
    at = time_of_fault(running)
    assert running.ends(at) == code, running.everything
    who, last = running.verdict
    assert re.search(rf"rank 1 \(pid {running.pids[1]}, host \S+\) {cause}", who), running.verdict
    assert "its last collective: " in last
    assert running.everything.count("Traceback") == (1 if "RuntimeError" in fault else 0), running.everything


def test_one_rank_finishes_early(job):
    running = job("sys.exit(0)", size=3)
    at = time_of_fault(running)
    assert running.ends(at) == 1, running.everything
    assert re.search(r"PeerLeftError: rank 1 has finished while rank (0|2) waits for 'loss'; every rank must run the same number", running.everything)
    assert re.search(r"rank (0|2) \(pid \d+, host \S+\) failed: PeerLeftError: rank 1 has finished", " ".join(running.verdict)), running.verdict


WAITS = "def compute_forever():\n    time.sleep(1000)\ncompute_forever()"


def test_a_rank_that_never_submits_is_named_with_its_place(job):
    running = job(WAITS, size=3, HVDLITE_STALL_WARNING_SECONDS="1")
    at = time_of_fault(running)
    running.until("has waited", 30)
    line = running.until("rank 1 (host", 10)
    assert f"pid {running.pids[1]}" in line
    assert "has not submitted 'loss'" in line
    assert re.search(r"its main thread is at \S*train\.py:\d+ in compute_forever", line)
    assert "rank 2 (" not in line
    assert time.time() - at < 60
    assert running.process.poll() is None
    os.kill(running.pids[1], signal.SIGKILL)
    assert running.ends(time.time()) == 137


def test_a_rank_that_never_submits_fails_the_job_where_that_is_asked_for(waiting_job):
    running = waiting_job(WAITS, HVDLITE_STALL_WARNING_SECONDS="1", HVDLITE_STALL_SHUTDOWN_SECONDS="2")
    at = time_of_fault(running)
    assert running.ends(at, 2 + 2 + SOON_S) == 1, running.everything
    assert re.search(r"rank (0|2) \(pid \d+, host \S+\) failed: StalledError: rank \d has waited \d+ s for 'loss'", " ".join(running.verdict)), running.verdict
    assert "in compute_forever" in running.everything


def test_ranks_that_wait_for_each_other_are_named(waiting_job):
    """Each order of two blocking collectives is right alone."""
    running = waiting_job("hvd.allreduce(np.ones(3), name='accuracy')", HVDLITE_STALL_WARNING_SECONDS="1", HVDLITE_STALL_SHUTDOWN_SECONDS="3")
    at = time_of_fault(running)
    assert running.ends(at, 3 + 2 + SOON_S) == 1, running.everything
    said = r"rank {} \(host \S+, pid \d+\): has not submitted '{}'; it waits for '{}'"
    either = said.format(1, "loss", "accuracy") + "|" + said.format(0, "accuracy", "loss")
    assert re.search(either, running.everything), running.everything


def test_a_stopped_rank_does_not_answer(waiting_job):
    running = waiting_job("os.kill(os.getpid(), signal.SIGSTOP)", HVDLITE_STALL_WARNING_SECONDS="1")
    time_of_fault(running)
    running.until("rank 1: does not answer (stopped, or lost)", 30)
    assert running.process.poll() is None
    os.kill(running.pids[1], signal.SIGKILL)
    assert running.ends(time.time()) == 137
    assert re.search(rf"rank 1 \(pid {running.pids[1]}, host \S+\) was killed by SIGKILL", " ".join(running.verdict))
