"""The harness that runs Horovod's own tests: it counts right, and goes on after a test that hangs or takes its process down."""

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parent / "horovod_suite" / "run.py"
TESTS = """
import os, time, pytest
import horovod.common.util
from hvdlite import settings
RANK = settings.launcher_rank()

def test_a_passes(): pass
def test_b_fails_on_one_rank(): assert RANK == 0, "not here"
@pytest.mark.skip(reason="no need")
def test_c_is_skipped(): pass
def test_d_hangs(): time.sleep(3600 if RANK else 0)
def test_e_ends_the_process(): os._exit(3) if RANK else time.sleep(3600)
def test_f_passes(): pass
def test_g_is_left_out(): assert False
"""


def test_every_test_is_counted_once(tmp_path):
    folder = tmp_path / "checkout" / "test" / "parallel"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(TESTS)
    counts = tmp_path / "counts.json"
    command = [sys.executable, str(RUN), str(tmp_path / "checkout"), "test/parallel/test_it.py", "-np", "2", "-k", "not left_out"]
    done = subprocess.run([*command, "--timeout", "4", "--json", str(counts)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(counts.read_text())["test/parallel/test_it.py"]
    assert report["counts"] == {"passed": 2, "failed": 1, "skipped": 1, "hang": 1, "crash": 1}, done.stdout
    assert report["problems"] == []
    reasons = report["reasons"]
    assert "rank 1: AssertionError: not here" in reasons["failed"]["test_b_fails_on_one_rank"]
    assert reasons["hang"]["test_d_hangs"] == "rank 1: still running"
    assert reasons["crash"]["test_e_ends_the_process"] == "rank 0, 1: gone"
    assert reasons["skipped"]["test_c_is_skipped"] == "no need"
    assert "hang test_d_hangs: rank 1: still running" in done.stdout
