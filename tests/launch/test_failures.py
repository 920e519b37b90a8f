"""Real jobs in which a rank fails: the others end soon, the exit code is the rank's, and the last lines say what happened."""

import re
import signal

import pytest

AFTER_A_BARRIER = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nif rank == 1:\n    {}\nif rank == 0: time.sleep(60)\nMPI.COMM_WORLD.Barrier()\n"
WITHOUT_MPI = "if rank == 1:\n    {}\ntime.sleep(60)\n"
SOON = 12.0  # seconds; start-up on busy cores included, rank 0's sleep not


@pytest.mark.parametrize(
    ("body", "what", "code", "reason"),
    [
        (AFTER_A_BARRIER, "raise ValueError('boom')", 1, r"failed: ValueError: boom"),
        (AFTER_A_BARRIER, "sys.exit(3)", 3, r"called sys.exit\(3\)"),
        (AFTER_A_BARRIER, "os.kill(os.getpid(), signal.SIGKILL)", 137, r"was killed by SIGKILL \(out of memory\? see dmesg\)"),
        (WITHOUT_MPI, "import ctypes; ctypes.string_at(0)", 139, r"was killed by SIGSEGV \(a crash in native code; its stack is above\)"),
        (WITHOUT_MPI, "os._exit(4)", 4, r"ended with code 4"),
        (WITHOUT_MPI, "raise KeyboardInterrupt", 130, r"was interrupted"),
        (WITHOUT_MPI, "raise RuntimeError('early\\nmore')", 1, r"failed: RuntimeError: early \.\.\."),
    ],
)
def test_one_rank_fails(hvdliterun, script, body, what, code, reason):
    result = hvdliterun("-np", 2, script(body.format(what)))
    assert result.code == code, result.stderr
    assert result.seconds < SOON
    last = result.stderr.splitlines()[-1]
    assert re.search(rf"^hvdliterun: rank 1 \(pid \d+, host \S+\) {reason}, \d+\.\d s after the start$", last), last
    assert result.stderr.count("Traceback") == (1 if "Error(" in what else 0)


def test_a_compressor_option_that_cannot_work_is_one_line_and_a_usage_error(hvdliterun, script):
    path = script("import hvdlite.compression\nhvdlite.compression.load('topk:density=2')\n")
    result = hvdliterun("-np", 2, path)
    assert result.code == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert re.search(r"failed: CompressionError: density=2.0 is no share .*\(\S+\.py:\d+\)", result.stderr.splitlines()[-1]), result.stderr


def test_mpi_abort_ends_the_job_with_its_code(hvdliterun, script):
    result = hvdliterun("-np", 2, script(AFTER_A_BARRIER.format("MPI.COMM_WORLD.Abort(7)")))
    assert result.code == 7, result.stderr
    assert result.seconds < SOON


def test_the_last_collective_is_told(hvdliterun, script):
    body = "open(os.path.join(os.environ['HVDLITE_JOB_DIR'], f'rank.{rank}.last'), 'wb').write(b\"allreduce 'fc.weight'\" + bytes(50))\nsys.exit(5)\n"
    result = hvdliterun("-np", 1, script(body))
    assert result.code == 5
    assert result.own_lines[-1] == "its last collective: allreduce 'fc.weight'"


def test_the_others_are_asked_before_they_are_killed(hvdliterun, script):
    body = """
def leave(*_):
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
if rank == 1:
    time.sleep(1)
    sys.exit(3)
time.sleep(60)
"""
    result = hvdliterun("-np", 2, script(body))
    assert (result.code, result.stdout) == (3, "[0] saved\n"), result.stderr


def test_a_rank_that_ignores_sigterm_is_killed_with_its_children(start, script):
    body = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("pid", child.pid, "pid", os.getpid(), flush=True)
time.sleep(60 if rank == 0 else 1)
os._exit(9)
"""
    job = start(2, script(body))
    code, _, _ = job.finish(limit=20)
    assert code == 9
    assert not job.alive()


def test_a_closed_reader_ends_the_job(start, script):
    job = start(1, script("print('pid', os.getpid(), flush=True)\nwhile True: print('x' * 1000)\n"))
    job.process.stdout.close()
    assert job.process.wait(20) == 128 + signal.SIGPIPE
    assert not job.alive()
