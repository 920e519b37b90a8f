"""Jobs that are started again: real ranks, killed, added and taken away."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("numpy")

TRAIN = """
import os, signal, sys, time
import numpy as np
import hvdlite as hvd
from hvdlite import elastic

hvd.init()
state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, total=0.0)
folder, num_steps = sys.argv[1], int(sys.argv[2])

def once(name):
    path = os.path.join(folder, name)
    if os.path.exists(path):
        return False
    open(path, "w").close()
    return True

@elastic.run
def train(state):
    print("START", state.step, hvd.size(), state.total, flush=True)
    while state.step < num_steps:
        state.total += float(hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum)[0])
        state.step += 1
        happens(state)
        state.commit() if state.step % 5 == 0 else state.check_host_updates()
    return state.total

def happens(state):
    pass
"""
END = "\nprint('END', train(state), hvd.size(), flush=True)\n"


@pytest.fixture
def write(tmp_path):
    """Writes a training to which something happens."""

    def make(happens: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(TRAIN + "\ndef happens(state):\n" + happens + END, encoding="utf-8")
        return path

    return make


def starts(output: str) -> list[tuple[int, int, float]]:
    """``(step, size, total)`` at which rank 0 began."""
    return [(int(a), int(b), float(c)) for a, b, c in re.findall(r"\[0\] START (\d+) (\d+) (\S+)", output)]


GROW_AND_DIE = """
    if hvd.size() == 1:
        if state.step == 7:
            open(os.path.join(folder, "hosts"), "w").write("localhost:2")
        time.sleep(0.05)
    elif state.step % 5 == 3 and hvd.rank() == 1 and once("died"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_grows_loses_a_rank_and_every_step_counts_once(mpi_python, write, tmp_path, launched):
    """The state at the change of hosts is kept though it was not committed; the loss of a rank costs what came after the commit."""
    (tmp_path / "hosts").write_text("localhost:1")
    discover = f"cat {tmp_path / 'hosts'}"
    done = launched("-np", 1, "--max-np", 2, "--host-discovery-script", discover, write(GROW_AND_DIE), tmp_path, 300, python=mpi_python)
    assert done.returncode == 0, done.stdout + done.stderr
    first, grown, lost = starts(done.stdout)
    assert first == (0, 1, 0.0)
    assert grown[0] >= 7
    assert grown[1:] == (2, float(grown[0]))
    assert lost[0] % 5 == 0 or lost[0] == grown[0]
    assert lost[0] >= grown[0]
    assert lost[1:] == (2, grown[0] + 2.0 * (lost[0] - grown[0]))
    total = grown[0] + 2.0 * (300 - grown[0])
    assert done.stdout.count(f"END {total} 2") == 2
    assert "the hosts have changed; the job is started again (reset 1); slots for ranks: 1 before, 2 now" in done.stderr
    assert re.search(r"rank 1 \(pid \d+, host \S+\) was killed by SIGKILL", done.stderr)
    assert "rank 1 is lost; the job is started again (reset 2)" in done.stderr


@pytest.fixture
def launched(tmp_path):
    """Runs ``hvdlite run`` to its end; its temporary files go to a folder of the test, which must be empty afterwards."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(*words: object, python: str = sys.executable, limit: float = 90.0) -> "subprocess.CompletedProcess[str]":
        root = str(Path(__file__).resolve().parents[2])
        variables = {**os.environ, "PYTHONPATH": root, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
        command = [python, "-m", "hvdlite", "run", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL, check=False)

    yield run
    assert [path for path in scratch.iterdir() if path.name.startswith("hvdlite")] == []


DISAGREE_AND_FAIL = """
    if state.step == 12 and hvd.size() == 2 and hvd.allgather_object(once(f"disagreed.{hvd.rank()}"))[0]:
        hvd.allreduce(np.ones(3 + hvd.rank(), np.float32), name="unequal")
    if state.step == 17 and hvd.rank() == 1:
        raise OSError("no such device")
"""


def test_only_the_host_of_a_rank_that_fails_itself_is_left_out(write, tmp_path, launched):
    logs = tmp_path / "logs"
    words = ["-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.1:1", "--output-filename", logs]
    done = launched(*words, write(DISAGREE_AND_FAIL), tmp_path, 30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert starts(done.stdout) == [(0, 2, 0.0), (10, 2, 20.0), (15, 1, 30.0)]
    assert "MismatchError" in done.stderr
    assert "host 127.0.0.1 is on the blacklist" in done.stderr
    assert "localhost is on" not in done.stderr
    assert "[0] END 45.0 1" in done.stdout
    assert (logs / "rank.0" / "stdout").read_text().count("START") == 3
    assert (logs / "rank.1" / "stderr").read_text().count("OSError: no such device") == 1


ALWAYS_FAILS = """
    if state.step == 8 and hvd.rank() == 1:
        sys.exit(7)
"""


def test_what_fails_every_time_ends_with_its_cause_and_code(write, tmp_path, launched):
    done = launched("-np", 2, "--min-np", 1, write(ALWAYS_FAILS), tmp_path, 30)
    assert done.returncode == 7
    assert [step for step, _, _ in starts(done.stdout)] == [0, 5, 5]
    assert len(re.findall(r"rank 1 \(pid \d+, host \S+\) called sys.exit\(7\)", done.stderr)) == 3
    assert done.stderr.rstrip().endswith("3 failures in a row, and nothing was committed between them; the job ends, because it would fail again")


def test_the_reset_limit_ends_the_job_with_the_cause(write, tmp_path, launched):
    done = launched("-np", 2, "--min-np", 1, "--reset-limit", 0, write(ALWAYS_FAILS), tmp_path, 30)
    assert done.returncode == 7
    assert len(starts(done.stdout)) == 1
    assert "called sys.exit(7)" in done.stderr
    assert "--reset-limit 0 ends it" in done.stderr


def test_too_few_slots_end_the_job_after_the_timeout(write, tmp_path, launched):
    begin = time.monotonic()
    words = ["-np", 2, "--min-np", 1, "--host-discovery-script", "echo localhost:1", "--elastic-timeout", 1.5]
    done = launched(*words, write("    pass\n"), tmp_path, 30)
    assert done.returncode == 1
    assert time.monotonic() - begin < 15
    assert "1 of at least 2 slots are there after 2 s; --elastic-timeout ends the job" in done.stderr
    assert "START" not in done.stdout


def test_a_discovery_script_that_is_wrong_from_the_start_ends_the_job(launched):
    done = launched("-np", 1, "--host-discovery-script", "echo elsewhere:2", sys.executable, "-c", "1")
    assert done.returncode == 1
    assert "names elsewhere; hvdliterun starts ranks on this machine" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_while_it_waits_for_hosts_ends_the_launcher_in_order(write, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "hvdlite", "run", "-np", "2", "--host-discovery-script", "echo localhost:1", str(write("    pass\n"))]
    variables = {**os.environ, "PYTHONPATH": root, "TMPDIR": str(scratch)}
    process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "waiting for more" in line:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
        assert "stopped by SIGTERM" in process.stderr.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stderr.close()
    assert list(scratch.glob("hvdlite*")) == []
