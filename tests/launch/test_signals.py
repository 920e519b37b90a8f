"""Signals to the launcher reach the ranks, and nothing outlives it."""

import signal
import time

import pytest

READY = "print('pid', os.getpid(), flush=True)\n"
POLITE = "def leave(number, _):\n    print('got', number, flush=True)\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, leave)\n" + READY + "time.sleep(60)\n"
STUBBORN = "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, lambda n, _: print('got', n, flush=True))\n" + READY + "while True: time.sleep(1)\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_sighup_end_the_ranks_politely(start, script, number, code):
    job = start(2, script(POLITE))
    job.process.send_signal(number)
    ended, out, err = job.finish(15)
    assert ended == code
    assert out.count("got 15") == 2
    assert err.splitlines()[-1].startswith(f"hvdliterun: stopped by {number.name} after")
    assert not job.alive()


def test_sigterm_kills_after_the_grace_period(start, script):
    job = start(2, "--grace-seconds", "1", script(STUBBORN))
    began = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    assert job.finish(15)[0] == 143
    assert 0.9 < time.monotonic() - began < 8
    assert not job.alive()


def test_sigint_interrupts_the_ranks(start, script):
    job = start(2, script("try:\n    " + READY + "    time.sleep(60)\nfinally: print('cleaned up', flush=True)\n"))
    job.process.send_signal(signal.SIGINT)
    code, out, err = job.finish(15)
    assert code == 130
    assert out.count("cleaned up") == 2
    assert "Traceback" not in err


def test_a_second_sigint_kills(start, script):
    job = start(2, script(STUBBORN))
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert len(job.alive()) == 2
    job.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert job.finish(15)[0] == 130
    assert time.monotonic() - began < 8
    assert not job.alive()


def test_user_signals_reach_the_ranks_only(start, script):
    body = "got = []\nfor s in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(s, lambda n, _: got.append(n))\n" + READY
    job = start(2, script(body + "while len(got) < 2: time.sleep(0.05)\nprint('got', got)\n"))
    job.process.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    job.process.send_signal(signal.SIGUSR2)
    code, out, err = job.finish(15)
    assert code == 0, err
    assert out.count("got [10, 12]") == 2


def test_nothing_outlives_a_killed_launcher(start, script):
    job = start(2, script("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n" + STUBBORN))
    job.process.kill()
    job.process.wait(5)
    deadline = time.monotonic() + 5
    while job.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not job.alive()


def test_nothing_outlives_a_killed_mpiexec(start, script):
    import psutil

    job = start(2, script(STUBBORN))
    for child in psutil.Process(job.process.pid).children():
        child.kill()
    code, _, err = job.finish(15)
    assert code != 0
    assert "ended with code" in err.splitlines()[-1]
    assert not job.alive()
