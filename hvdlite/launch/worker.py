"""One rank: ``python -m hvdlite.launch.worker KIND TARGET ARGUMENTS...``, started by mpiexec.

The process forks. The child becomes the program; the parent only waits for it, tells the launcher exactly how it ended, and stays until the launcher releases
it. So MPI's own launcher never sees a rank end early, and all of them treat a failure alike: as ours does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import io
import json
import os
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from .. import as_horovod, settings
from . import script

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

EVENTS = "events"  # the named pipe in which ranks tell the launcher that they started and ended, a JSON object a line
STDIN = "stdin"  # the named pipe that is rank 0's stdin, if it has one
_PR_SET_PDEATHSIG = 1


def failure_path(job_directory: str | Path, rank: int) -> Path:
    """Where a rank says why its program failed."""
    return Path(job_directory) / f"rank.{rank}.failure"


def main(arguments: list[str]) -> None:
    """Be the rank that MPI's launcher says we are."""
    rank, job_directory = settings.launcher_rank(), settings.job_directory()
    die_with_parent()
    if rank is None or job_directory is None or len(arguments) < 2:
        sys.stderr.write("hvdlite.launch.worker is started by hvdliterun; no rank or no job was announced; run hvdliterun -np 2 python train.py\n")
        os._exit(2)
    monitor = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: numpy has made threads; they hold no lock
        child = os.fork()
    if child:
        _wait_for(child, rank, job_directory)
    die_with_parent()
    if os.getppid() != monitor:
        os._exit(1)
    _become(rank, job_directory, monitor)
    _run(arguments, rank, job_directory)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens: nothing is orphaned."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# --- The parent ---------------------------------------------------------------------------------------------------------------------


def _wait_for(child: int, rank: int, job_directory: str) -> None:
    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the launcher signals the child itself
    signal.signal(signal.SIGTERM, forward)  # MPI_Abort elsewhere: MPI's launcher ends the ranks
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    tell(job_directory, {"rank": rank, "code": code})
    signal.sigwait({signal.SIGTERM})
    os._exit(code if code >= 0 else 128 - code)


def tell(job_directory: str, event: dict[str, object]) -> None:
    """Write one event: short enough to be atomic."""
    with contextlib.suppress(OSError):  # the launcher is gone, and so are we, soon
        pipe = os.open(Path(job_directory) / EVENTS, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(pipe, True)
        os.write(pipe, json.dumps(event).encode() + b"\n")
        os.close(pipe)


# --- The child ----------------------------------------------------------------------------------------------------------------------


def _become(rank: int, job_directory: str, monitor: int) -> None:
    """Take on the streams and signals of the rank, and announce it."""
    for number, name in enumerate(("stdout", "stderr"), start=1):
        pipe = os.open(Path(job_directory) / f"rank.{rank}.{name}", os.O_WRONLY | os.O_NONBLOCK)  # fails if the launcher is gone, instead of waiting
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        os.dup2(pipe, number)
        os.close(pipe)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN):
        signal.signal(number, signal.SIG_DFL)
    tell(job_directory, {"rank": rank, "pid": os.getpid(), "monitor": monitor, "host": socket.gethostname()})
    source = Path(job_directory) / STDIN
    stdin = os.open(source if rank == 0 and source.exists() else os.devnull, os.O_RDONLY)
    os.dup2(stdin, 0)
    os.close(stdin)
    # As on a terminal: whole lines at once. PYTHONUNBUFFERED, meant for the program's children, would write a line and its end separately.
    sys.stdout = sys.__stdout__ = _line_buffered(1, "surrogateescape")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _line_buffered(2, "backslashreplace")  # type: ignore[misc]
    faulthandler.enable(file=2)


class _Whole(io.FileIO):
    """Writes all of what it is given. No buffer below the text layer: a signal handler may print while the program prints."""

    def write(self, data: Buffer, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            written = super().write(rest)
            if written is None:  # a child made the pipe non-blocking
                time.sleep(0.001)
            rest = rest[written or 0 :]
        return size


def _line_buffered(fd: int, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(_Whole(fd, "w", closefd=False), encoding="utf-8", errors=errors, line_buffering=True)


def _run(arguments: list[str], rank: int, job_directory: str) -> None:
    kind, target, rest = arguments[0], arguments[1], arguments[2:]

    def failed(kind_of_error: str, text: str) -> None:
        record(rank, job_directory, kind_of_error, text)

    if kind != "program":
        if settings.as_horovod():
            as_horovod.install()
        script.run(kind, target, rest, failed=failed)
        return
    try:
        os.execv(target, [target, *rest])
    except OSError as error:
        sys.stderr.write(f"{target}: {error.strerror}\n")
        failed(type(error).__name__, f"{error.strerror}: {target}")
        script.leave(126)


def record(rank: int, job_directory: str, kind: str, text: str) -> None:
    """Leave the cause of our end for the launcher."""
    path = failure_path(job_directory, rank)
    found = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "type": kind, "text": text[:4000], "time": time.time()}
    with contextlib.suppress(OSError):  # a full disk must not keep us from ending
        new = path.with_suffix(".new")
        new.write_text(json.dumps(found), encoding="utf-8")
        os.replace(new, path)


if __name__ == "__main__":
    main(sys.argv[1:])
