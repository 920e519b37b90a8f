"""Hosts on shaped links: what runs on them, what the kernel counts there, and that nothing stays behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvdlite import compression
from hvdlite.errors import LaunchError, SettingError
from hvdlite.launch.hosts import Hosts, why_not
from hvdlite.launch.plan import shares
from hvdlite.link import Link

ROOT = Path(__file__).resolve().parents[2]
MBIT = Link(100e6)


@pytest.fixture(scope="module")
def possible():
    """Skips where there can be no hosts, saying what is missing."""
    try:
        with Hosts(1, MBIT):
            return
    except LaunchError as error:
        pytest.skip(str(error))


def start(tmp_path, *words):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [sys.executable, "-m", "hvdlite", "run", "--no-prefix", *words]
    return subprocess.Popen(
        line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ranks_are_dealt_evenly():
    assert [shares(4, 2), shares(3, 2), shares(2, 2), shares(5, 3)] == [[2, 2], [2, 1], [1, 1], [2, 2, 1]]
    for hosts in (0, 3):
        with pytest.raises(SettingError, match=f"{hosts} hosts for 2 ranks"):
            shares(2, hosts)


def test_a_link_has_the_rate_that_was_asked_for(possible):
    sink = "import socket; s = socket.create_server(('', 9)); print(flush=True); c = s.accept()[0]\nwhile c.recv(1 << 16): pass"
    source = (
        "import socket, sys, time; c = socket.create_connection((sys.argv[1], 9)); c.sendall(bytes(1 << 20)); began = time.perf_counter()\n"
        "for _ in range(10): c.sendall(bytes(1 << 20))\nprint(10 * 8 * (1 << 20) / (time.perf_counter() - began))"
    )
    with Hosts(2, MBIT) as hosts:
        before = hosts.sent_bytes(0)
        with subprocess.Popen(hosts.on(1, [sys.executable, "-c", sink]), stdout=subprocess.PIPE) as receiver:
            receiver.stdout.readline()
            done = subprocess.run(hosts.on(0, [sys.executable, "-c", source, hosts.addresses[1]]), capture_output=True, text=True, timeout=30, check=True)
            receiver.wait(10)
        assert float(done.stdout) == pytest.approx(100e6, rel=0.15)
        assert hosts.sent_bytes(0) - before == pytest.approx(11 * (1 << 20), rel=0.05)


def test_ranks_run_on_their_hosts_where_the_launcher_was(possible, tmp_path):
    script = "import os, socket, hvdlite as h; h.init(); t = h.world().topology; print(h.rank(), socket.gethostname(), t.local_size, os.getcwd())"
    (tmp_path / "where.py").write_text(script)
    out, err = start(tmp_path, "-np", "3", "--link", "1gbit", "--link-hosts", "2", "where.py").communicate(timeout=60)
    assert sorted(out.splitlines()) == [f"0 hvdhost0 2 {tmp_path}", f"1 hvdhost0 2 {tmp_path}", f"2 hvdhost1 1 {tmp_path}"], err


def test_the_kernel_counts_what_hvdlite_counts(possible, tmp_path):
    """For every compressor; headers, acknowledgements and negotiation are in the 3 %."""
    worker = [str(ROOT / "benchmarks" / "wire_bytes_worker.py"), "-", "3", "1024", "4", *compression.names()]
    out, err = start(tmp_path, "-np", "2", "--link", "1gbit", "--bucket-bytes", str(1 << 30), *worker).communicate(timeout=90)
    found = json.loads(out or pytest.fail(err))
    assert found.keys() == set(compression.names())
    for name, ranks in found.items():
        for rank in ranks:
            assert rank["wire_bytes"] < rank["kernel"] < 1.03 * rank["wire_bytes"], (name, rank)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_nothing_is_left_however_the_launcher_ends(possible, tmp_path, number):
    script = "import hvdlite, os, time; hvdlite.init(); open(f'up.{hvdlite.rank()}', 'w').close(); time.sleep(60)"
    (tmp_path / "sleeps.py").write_text(script)
    job = start(tmp_path, "-np", "2", "--link", "1gbit", "sleeps.py")
    wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 2, 30)
    ours = net_namespaces(psutil.Process(job.pid).children(recursive=True)) - net_namespaces([psutil.Process(job.pid)])
    assert len(ours) == 3, "two hosts and the switch"
    job.send_signal(number)
    job.communicate(timeout=20)
    wait_until(lambda: not ours & net_namespaces(psutil.process_iter()), 10)


def net_namespaces(processes):
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):  # gone meanwhile
            found.add(os.readlink(f"/proc/{process.pid}/ns/net"))
    return found


def wait_until(holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LaunchError, match=r"need root; .*; run it with sudo"), Hosts(2, MBIT):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "run apt-get install iproute2 mount util-linux" in why_not()
    for tool in ("ip", "tc", "unshare", "nsenter", "mount"):
        (tmp_path / tool).write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2; exit 1\n")
        (tmp_path / tool).chmod(0o755)
    assert why_not() is None
    with pytest.raises(LaunchError, match=r"unshare .* says 'unshare failed: Operation not permitted'; .*docker run --privileged"), Hosts(2, MBIT):
        pass


def test_usage(tmp_path):
    (tmp_path / "x.py").touch()
    for words, says in [
        (["-np", "2", "--link-hosts", "2", "x.py"], "--link-hosts 2 stands alone"),
        (["-np", "2", "--link", "fast", "x.py"], "link 'fast' cannot be read"),
        (["-np", "2", "--link", "1gbit", "--link-hosts", "3", "x.py"], "3 hosts for 2 ranks"),
    ]:
        job = start(tmp_path, *words)
        _, err = job.communicate(timeout=30)
        assert job.returncode == 2, err
        assert says in err
