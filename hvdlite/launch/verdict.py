"""How a job ended, in words: which rank failed first, why, and the exit code."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

from .worker import failure_path

_HINTS: dict[int, str] = {
    signal.SIGKILL: "out of memory? see dmesg",
    signal.SIGSEGV: "a crash in native code; its stack is above",
    signal.SIGABRT: "native code gave up; its message is above",
    signal.SIGBUS: "is /dev/shm or the disk full?",
}


@dataclass(frozen=True)
class Ended:
    """A rank that ended: ``code`` is its exit code, or minus the number of the signal that killed it."""

    rank: int
    pid: int
    host: str
    code: int
    seconds: float  # since the start of the job

    @property
    def exit_code(self) -> int:
        """As a shell reports it."""
        return self.code if self.code >= 0 else 128 - self.code


def describe(ended: Ended, job_directory: Path) -> list[str]:
    """The lines about the rank that failed first."""
    lines = [f"rank {ended.rank} (pid {ended.pid}, host {ended.host}) {_cause(ended, job_directory)}, {ended.seconds:.1f} s after the start"]
    last = _text(job_directory / f"rank.{ended.rank}.last")
    if last:
        lines.append(f"its last collective: {_first_line(last)}")
    return lines


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _cause(ended: Ended, job_directory: Path) -> str:
    if ended.code < 0:
        hint = _HINTS.get(-ended.code)
        return f"was killed by {signal_name(-ended.code)}" + (f" ({hint})" if hint else "")
    try:
        record = json.loads(_text(failure_path(job_directory, ended.rank)))
        kind, text = str(record["type"]), str(record["text"])
    except (ValueError, KeyError, TypeError):
        return f"ended with code {ended.code}"
    if kind == "SystemExit":
        return f"called sys.exit({ended.code})"
    if kind == "KeyboardInterrupt":
        return "was interrupted"
    return f"failed: {kind}: {_first_line(text)}" if text else f"failed: {kind}"


def _first_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return lines[0][:500] + (" ..." if len(lines) > 1 or len(lines[0]) > 500 else "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
        return ""
