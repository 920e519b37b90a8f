"""``hvdlite.run``: a Python function, called on every rank of a job of its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import settings
from ..errors import LaunchError, SettingError

CALL = "call"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    env: Mapping[str, str] | None = None,
    output_filename: str | None = None,
    verbose: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on every rank of a new job on this machine, and return the results in the order of ranks.

    The function runs in processes of their own and calls :func:`hvdlite.init` itself. It, its arguments and its results travel by cloudpickle, so functions
    of a notebook and lambdas will do. What ranks print is shown as by hvdliterun.

    Args:
        func: what to call.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: number of ranks; ``np`` is Horovod's older word for it.
        env: environment variables that ranks get beyond those of this process.
        output_filename: a folder that also gets what each rank prints.
        verbose: say which MPI is used, and how.
        executable: the Python of the ranks, if not this one.
    Raises:
        LaunchError: a rank failed; the message names it and what it raised.
        SettingError: the number of ranks makes no sense.
    """
    import cloudpickle

    size = num_proc if np is None else np
    if size < 1:
        raise SettingError(f"np={size} is no number of ranks; at least 1 is expected; give np=2, say")
    with tempfile.TemporaryDirectory(prefix="hvdlite-run-") as name:
        folder = Path(name)
        (folder / CALL).write_bytes(pickle.dumps((sys.path, cloudpickle.dumps((func, tuple(args), dict(kwargs or {}))))))
        options = ["--verbose"] if verbose else []
        options += [] if output_filename is None else ["--output-filename", output_filename]
        python = executable or sys.executable
        words = [python, "-m", "hvdlite", "run", "-np", str(size), *options, python, "-m", "hvdlite.launch.call", name]
        done = subprocess.run(words, env={**settings.snapshot(), **(env or {})}, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            failed = next((f"rank {r} failed: {why}" for r in range(size) if (why := _text(failure(folder, r)))), "a rank ended before it had a result")
            raise LaunchError(f"{failed} (exit code {done.returncode}); a result of each of {size} ranks is expected; the output of the ranks above says more")
        return [pickle.loads(result(folder, rank).read_bytes()) for rank in range(size)]


def result(folder: Path, rank: int) -> Path:
    """Where a rank leaves its result."""
    return folder / f"result.{rank}"


def failure(folder: Path, rank: int) -> Path:
    """Where a rank says what the function raised."""
    return folder / f"failure.{rank}"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
