"""Runs a job: starts mpiexec, follows its ranks, forwards signals, and ends all ranks when one fails.

The ranks' monitors (see ``worker``) report through a named pipe when their program starts and how it ends, so the order of ends is the order of the pipe. MPI's
own launcher only starts processes and serves MPI; it is not asked about failures.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil  # type: ignore[import-untyped]

from . import handover
from .output import Output, warn
from .verdict import Ended, describe, signal_name
from .worker import EVENTS, die_with_parent

_OTHERS_SECONDS = 3.0  # after a failure, how long the other ranks may take to react to SIGTERM
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _Rank:
    """A rank that announced itself."""

    pid: int
    monitor: int
    host: str
    pidfd: int | None
    ended: Ended | None = None
    leaves: str | None = None
    """Why it asks for the job to be started again, if it does: see :mod:`hvdlite.launch.handover`."""

    def send(self, number: int) -> None:
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                if self.pidfd is not None:
                    signal.pidfd_send_signal(self.pidfd, number)
                else:
                    os.kill(self.pid, number)


class Job:
    """A job of ``size`` ranks on this machine; :meth:`run` returns its exit code."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        size: int,
        directory: Path,
        *,
        grace_seconds: float,
        verbose: bool,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``look`` is called several times a second while the job runs."""
        self._arguments, self._environment, self._size, self._directory = list(arguments), dict(environment), size, directory
        self._grace_seconds, self._verbose, self._look = grace_seconds, verbose, look
        self._ranks: dict[int, _Rank] = {}
        self._first: Ended | None = None  # the first rank that failed
        self._stop: int | None = None  # the signal that ends the job
        self._kill_at: float | None = None
        self._killed = False
        self._signals: deque[int] = deque()
        self._said = b""  # the last words of mpiexec
        self._partial = b""  # of the events
        os.mkfifo(directory / EVENTS, 0o600)
        self._events = os.open(directory / EVENTS, os.O_RDWR | os.O_NONBLOCK)
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)

    @property
    def first_failure(self) -> Ended | None:
        """The rank that failed first."""
        return self._first

    @property
    def is_stopped(self) -> bool:
        """Whether a signal ended the job."""
        return self._stop is not None

    def left(self, why: str) -> bool:
        """Whether the job ended because ranks asked, for this reason, for it to be started again."""
        first = self._first
        asked = self._ranks.values() if first is None else [self._ranks[first.rank]]
        return any(rank.leaves == why for rank in asked)

    def stop_because_nobody_reads(self) -> None:
        """Our own output is broken (``| head``): end the job as that would end any program. Any thread may call this."""
        self._signals.append(signal.SIGPIPE)
        self._waker.send(b"x")

    def run(self, output: Output, feed: Callable[[], None]) -> int:
        """Start the ranks, ``feed`` rank 0's stdin, and stay until all ranks are gone."""
        with self._handlers():
            self._started = time.monotonic()
            # Before any thread exists, so that code between fork and exec is safe. A session of its own: Ctrl-C reaches us alone.
            self._mpiexec = subprocess.Popen(
                self._arguments,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            output.start()
            feed()
            try:
                self._follow()
            finally:
                self._clean_up()
            output.finish()
        return self._conclude()

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        def note(number: int, _: FrameType | None) -> None:
            self._signals.append(number)

        before = {number: signal.signal(number, note) for number in (*_STOPPING, *_FORWARDED)}
        before[signal.SIGTTIN] = signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background, reading stdin fails instead of stopping us
        old = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- While it runs --------------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        said = self._mpiexec.stdout
        assert said is not None
        os.set_blocking(said.fileno(), False)
        with selectors.DefaultSelector() as selector:
            for source in (self._events, self._wake, said):
                selector.register(source, selectors.EVENT_READ)
            while not self._all_ended():
                gone = self._mpiexec.poll() is not None
                ready = [key.fileobj for key, _ in selector.select(0 if gone else self._timeout())]
                if self._wake in ready:
                    self._wake.recv(4096)
                if self._events in ready:
                    self._read_events()
                if said in ready and not self._listen(said.fileno()):
                    selector.unregister(said)
                while self._signals:
                    self._on_signal(self._signals.popleft())
                self._check_deadline()
                self._look()
                if gone and self._events not in ready:
                    return

    def _all_ended(self) -> bool:
        return len(self._ranks) == self._size and all(r.ended for r in self._ranks.values())

    def _timeout(self) -> float:
        # Bounded: the end of mpiexec itself wakes nobody if a stray process still holds its output.
        return 0.25 if self._kill_at is None else min(0.25, max(0.0, self._kill_at - time.monotonic()))

    def _listen(self, fd: int) -> bool:
        """Keep the last words of mpiexec; False at their end."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        self._said = (self._said + data)[-8192:]
        if self._verbose:
            for line in data.decode("utf-8", "replace").splitlines():
                warn(f"mpiexec: {line}")
        return bool(data)

    def _read_events(self) -> None:
        with contextlib.suppress(BlockingIOError):
            *lines, self._partial = (self._partial + os.read(self._events, 65536)).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if "pid" in event:
                    self._on_start(event["rank"], event["pid"], event["monitor"], event["host"])
                elif "leaves" in event:
                    self._ranks[event["rank"]].leaves = event["leaves"]
                else:
                    self._on_end(event["rank"], event["code"])

    def _on_start(self, rank: int, pid: int, monitor: int, host: str) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            pidfd = None
        self._ranks[rank] = started = _Rank(pid, monitor, host, pidfd)
        if self._killed:
            started.send(signal.SIGKILL)
        elif self._first or self._stop:
            started.send(self._stop if self._stop == signal.SIGINT else signal.SIGTERM)

    def _on_end(self, rank: int, code: int) -> None:
        known = self._ranks.setdefault(rank, _Rank(0, 0, socket.gethostname(), None))
        known.ended = Ended(rank, known.pid, known.host, code, time.monotonic() - self._started)
        if code != 0 and self._first is None and self._stop is None and not self._killed:
            self._first = known.ended
            self._end_ranks(signal.SIGTERM, _OTHERS_SECONDS)
        elif known.leaves and self._kill_at is None:  # the others do the same
            self._kill_at = time.monotonic() + _OTHERS_SECONDS

    def _on_signal(self, number: int) -> None:
        if number in _FORWARDED:
            self._send(number)
        elif self._stop is not None or self._first is not None:
            if number != signal.SIGPIPE:
                self._kill_at = time.monotonic()
        else:
            self._stop = number
            if number == signal.SIGINT:
                warn(f"interrupting {self._size} ranks; they have {self._grace_seconds:g} s; press Ctrl-C again to kill them")
            self._end_ranks(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM, self._grace_seconds)
            if not self._ranks:
                self._kill_at = time.monotonic() + min(1.0, self._grace_seconds)

    def _end_ranks(self, number: int, seconds: float) -> None:
        self._send(number)
        self._kill_at = time.monotonic() + seconds

    def _send(self, number: int) -> None:
        for rank in self._ranks.values():
            rank.send(number)

    def _check_deadline(self) -> None:
        if self._kill_at is None or time.monotonic() < self._kill_at:
            return
        if not self._killed and self._ranks:
            self._killed = True
            self._send(signal.SIGKILL)
            self._kill_at = time.monotonic() + 1.0  # by then their monitors have told
        else:
            self._kill_at = None
            self._mpiexec.kill()

    # --- The end --------------------------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Leave no process of the job behind: release the monitors, then wait for mpiexec, which tidies up after itself."""
        good = self._all_ended() and not self._first and self._stop is None and not any(r.leaves for r in self._ranks.values())
        stray = [] if good else _descendants(self._mpiexec.pid)
        self._send(signal.SIGKILL)
        for rank in self._ranks.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if good:
                    os.kill(rank.monitor, signal.SIGTERM)
                elif rank.monitor > 0 and os.getpgid(rank.monitor) == rank.monitor:
                    os.killpg(rank.monitor, signal.SIGKILL)  # with the program's own children
        for patience, end in ((5.0, self._mpiexec.terminate), (2.0, self._mpiexec.kill)):
            try:
                self._mpiexec.wait(patience)
                break
            except subprocess.TimeoutExpired:
                end()
        self._mpiexec.wait()
        for process in stray:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._mpiexec.stdout:
            self._listen(self._mpiexec.stdout.fileno())
        for rank in self._ranks.values():
            if rank.pidfd is not None:
                os.close(rank.pidfd)

    def _conclude(self) -> int:
        """Say how it ended; the exit code."""
        seconds = time.monotonic() - self._started
        if self._first is not None:
            for line in describe(self._first, self._directory):
                warn(line)
            return self._first.exit_code
        if self._stop is not None:
            if self._stop != signal.SIGPIPE:
                warn(f"stopped by {signal_name(self._stop)} after {seconds:.1f} s")
            return 128 + self._stop
        if self._all_ended() or self.left(handover.HOSTS):
            return 0
        code = self._mpiexec.returncode
        for line in self._said.decode("utf-8", "replace").splitlines():
            warn(f"mpiexec: {line}")
        started = f"{len(self._ranks)} of {self._size} ranks had started" if len(self._ranks) < self._size else "ranks were still running"
        warn(f"{self._arguments[0]} ended with code {code} after {seconds:.1f} s; {started}")
        return code if code > 0 else 128 - code if code < 0 else 1


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
