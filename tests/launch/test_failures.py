"""Real jobs in which a rank fails: the others end soon, the exit code is the rank's, and the last lines say what happened."""

import re
import signal

import pytest

AFTER_A_BARRIER = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nif rank == 1:\n    {}\nif rank == 0: time.sleep(60)\nMPI.COMM_WORLD.Barrier()\n"
SOON = 12.0  # seconds; start-up on busy cores included, rank 0's sleep not


@pytest.mark.parametrize(
    ("what", "code", "reason"),
    [
        ("raise ValueError('boom')", 1, r"failed: ValueError: boom"),
        ("sys.exit(3)", 3, r"called sys.exit\(3\)"),
        ("os._exit(4)", 4, r"ended with code 4"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"was killed by SIGKILL \(out of memory\? see dmesg\)"),
        ("import ctypes; ctypes.string_at(0)", 139, r"was killed by SIGSEGV \(a crash in native code; its stack is above\)"),
        ("raise KeyboardInterrupt", 130, r"was interrupted"),
    ],
)
def test_one_rank_fails(hvdliterun, script, what, code, reason):
    result = hvdliterun("-np", 2, script(AFTER_A_BARRIER.format(what)))
    assert result.code == code, result.stderr
    assert result.seconds < SOON
    last = result.stderr.splitlines()[-1]
    assert re.search(rf"^hvdliterun: rank 1 \(pid \d+, host \S+\) {reason}, \d+\.\d s after the start$", last), last
    assert result.stderr.count("Traceback") == (1 if "ValueError" in what else 0)


def test_mpi_abort_ends_the_job_with_its_code(hvdliterun, script):
    result = hvdliterun("-np", 2, script(AFTER_A_BARRIER.format("MPI.COMM_WORLD.Abort(7)")))
    assert result.code == 7, result.stderr
    assert result.seconds < SOON


def test_a_failure_before_mpi_begins(hvdliterun, script):
    result = hvdliterun("-np", 2, script("if rank == 1: raise RuntimeError('early\\nmore')\ntime.sleep(60)\n"))
    assert (result.code, result.seconds < SOON) == (1, True), result.stderr
    assert "failed: RuntimeError: early ..." in result.own_lines[-1]


def test_the_traceback_shows_the_program_only(hvdliterun, script):
    path = script("def f():\n    raise ValueError('boom')\nf()\n")
    result = hvdliterun("-np", 1, path)
    trace = result.stderr.splitlines()
    begin = trace.index("Traceback (most recent call last):")
    assert re.match(rf'  File "{re.escape(str(path))}", line \d+, in <module>', trace[begin + 1])
    assert "hvdlite" not in "".join(trace[begin:-1])
    assert trace[-2] == "ValueError: boom"


@pytest.mark.parametrize(("body", "expected"), [("def f(:\n", "SyntaxError"), ("import not_there\n", "ModuleNotFoundError"), ("sys.exit('sorry')\n", "sorry")])
def test_scripts_that_do_not_get_far(hvdliterun, script, body, expected):
    result = hvdliterun("-np", 1, script(body))
    assert result.code == 1
    assert expected in result.stderr


def test_a_missing_module_is_one_line(hvdliterun):
    result = hvdliterun("-np", 1, "-m", "no_such_module")
    assert result.code == 1
    assert "No module named 'no_such_module'" in result.own_lines[-1]


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
