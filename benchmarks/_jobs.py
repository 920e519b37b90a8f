"""Jobs of several ranks, and the plan of a benchmark that runs many: what is left, what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import INTERFACE, Hosts

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 300
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
UNTUNED = {"HVDLITE_BUCKET_BYTES": str(4 << 20), "HVDLITE_SLOTS_IN_USE": "4"}
"""Arms take turns of a few steps, which is no time to choose by; what the user's environment says goes first."""
NO_STALLS = {"HVDLITE_STALL_WARNING_SECONDS": "20", "HVDLITE_STALL_SHUTDOWN_SECONDS": "40"}


class JobError(RuntimeError):
    """A job did not end as it should."""


def run_job(
    python: str,
    ranks: int,
    script: str,
    arguments: Sequence[object],
    *,
    hosts: Hosts | None = None,
    link: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """Run a script of this folder on ``ranks`` ranks; what its rank 0 printed as JSON.

    They run here, one on each of the ``hosts``, or one on each of new ones with links of rate ``link``.
    The script's first argument is the path of a file that does not exist yet, for those who must meet.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [str(HERE / script), str(Path(folder, "meet")), *map(str, arguments)]
        if hosts is None:
            shaped = ["--link", link] if link else []
            line, network = [python, "-m", "hvdlite", "run", "-np", str(ranks), "--no-prefix", *shaped, *command], {}
        else:
            line, network = hosts.mpiexec(str(Path(python).parent / "mpiexec"), [python, *command])
            network |= {"GLOO_SOCKET_IFNAME": INTERFACE}
        return _answer(line, UNTUNED | os.environ | ONE_THREAD | NO_STALLS | network | (settings or {}))


def run_alone(python: str, script: str, arguments: Sequence[object]) -> Any:
    """Run a script of this folder as one process without MPI; what it printed as JSON."""
    return _answer([python, str(HERE / script), *map(str, arguments)], os.environ | ONE_THREAD)


def _answer(line: Sequence[str], environment: Mapping[str, str]) -> Any:
    try:
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as late:
        raise JobError(f"{' '.join(line)} was not done after {late.timeout} s\n{_tail(late.stdout)}\n{_tail(late.stderr)}") from None
    answers = [row for row in done.stdout.splitlines() if row.startswith("{")]
    if done.returncode or not answers:
        raise JobError(f"{' '.join(line)} ended with {done.returncode} and {len(answers)} answers\n{_tail(done.stdout)}\n{_tail(done.stderr)}")
    return json.loads(answers[0])


def _tail(text: str | bytes | None) -> str:
    return (text.decode(errors="replace") if isinstance(text, bytes) else text or "")[-3000:]


class Plan:
    """The parts of a benchmark: each is announced on stderr, and one that fails does not keep the others from running."""

    def __init__(self, name: str, num_parts: int):
        self.failed: list[str] = []
        self._name, self._num_parts = name, num_parts
        self._begun, self._done = time.monotonic(), 0

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """One part."""
        elapsed = time.monotonic() - self._begun
        left = f", about {elapsed / self._done * (self._num_parts - self._done):.0f} s left" if self._done else ""
        print(f"{self._name}: {what} (part {self._done + 1} of {self._num_parts}{left})", file=sys.stderr, flush=True)
        try:
            yield
        except (JobError, subprocess.SubprocessError) as error:
            self.failed.append(what)
            print(f"{self._name}: {what} failed: {error}", file=sys.stderr, flush=True)
        self._done += 1

    def end(self) -> None:
        """Leave with an exit code that says whether everything went well."""
        if self.failed:
            sys.exit(f"{self._name}: failed: {'; '.join(self.failed)}")
