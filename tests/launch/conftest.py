import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
RANK = "import os, sys, time, signal\nrank = int(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])\n"


@dataclass
class Result:
    code: int
    stdout: str
    stderr: str
    seconds: float

    def lines_of(self, rank: int) -> list[str]:
        return [line.removeprefix(f"[{rank}] ") for line in self.stdout.splitlines() if line.startswith(f"[{rank}] ")]

    @property
    def own_lines(self) -> list[str]:
        return [line.removeprefix("hvdliterun: ") for line in self.stderr.splitlines() if line.startswith("hvdliterun: ")]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script that knows ``rank``."""

    def write(body: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RANK + body, encoding="utf-8")
        return path

    return write


@pytest.fixture
def hvdliterun(tmp_path: Path) -> Callable[..., Result]:
    """Runs ``hvdlite run`` to its end, within a time limit."""
    import time

    def run(*words: object, stdin: str | None = "", limit: float = 60.0, **more: str) -> Result:
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "hvdlite", "run", *map(str, words)],
            cwd=tmp_path,
            env=environment(**more),
            input=(stdin or "").encode(),
            capture_output=True,
            timeout=limit,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode(), time.monotonic() - start)

    return run


class Running:
    """A job that is under way: its launcher, and the pids its ranks print as ``pid N``."""

    def __init__(self, process: "subprocess.Popen[str]", size: int) -> None:
        self.process = process
        self.head: list[str] = []
        self.pids: list[int] = []
        assert process.stdout is not None
        while len(self.pids) < size:
            line = process.stdout.readline()
            assert line, "the job ended before its ranks had started"
            self.head.append(line)
            self.pids += [int(n) for n in re.findall(r"pid (\d+)", line)]

    def finish(self, limit: float = 30.0) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=limit)
        return self.process.returncode, "".join(self.head) + out, err

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def start(tmp_path: Path):
    """Starts ``hvdlite run -np SIZE`` and waits until its ranks have printed their pids."""
    started: list[subprocess.Popen[str]] = []

    def begin(size: int, *words: object) -> Running:
        process = subprocess.Popen(
            [sys.executable, "-m", "hvdlite", "run", "-np", str(size), *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Running(process, size)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)
