"""What an elastic job hands from one start to the next, and how its ranks and the launcher tell each other.

Files only, in folders of this job that only its user may read: the states that rank 0 commits, one a call of ``hvd.elastic.run``, in the folder that lives as
long as the job; and the launcher's note that hosts have changed, in the folder of one start.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import script, worker

HOSTS = "hosts"
"""A rank leaves because the launcher asked for another number of ranks."""
ERROR = "error"
"""A rank leaves because a collective failed: it is not its fault."""

ADDED, REMOVED = 2, 1
"""What has happened to hosts: bits, as in Horovod's ``HostUpdateResult``."""


@dataclass(frozen=True)
class HostsNote:
    """Hosts were added, removed, or both, at this time in seconds."""

    timestamp: float
    change: int


class Handover:
    """The states that the job has committed."""

    def __init__(self, directory: str | Path):
        self._directory = Path(directory)

    def keep(self, number: int, state: Any) -> None:
        """Replace the state of the ``number``-th run, all or nothing.

        Raises:
            OSError: it cannot be written; the one before is still there.
        """
        path = self._path(number)
        new = path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                pickle.dump(state, file, pickle.HIGHEST_PROTOCOL)
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def recall(self, number: int) -> Any:
        """The state of the ``number``-th run that was kept last; None if none was."""
        try:
            with self._path(number).open("rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            return None

    def has(self, number: int) -> bool:
        """Whether a state of the ``number``-th run was kept."""
        return self._path(number).exists()

    def digest(self) -> bytes:
        """Differs when something else was kept."""
        found = hashlib.blake2b()
        for path in sorted(self._directory.glob("state.*[0-9]")):
            found.update(path.name.encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    found.update(piece)
        return found.digest()

    def _path(self, number: int) -> Path:
        return self._directory / f"state.{number}"


def announce(job_directory: Path, note: HostsNote | None) -> None:
    """Tell the ranks that hosts have changed; None: nothing to tell any more."""
    path = job_directory / HOSTS
    if note is None:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".new")
    new.write_text(json.dumps([note.timestamp, note.change]), encoding="utf-8")
    os.replace(new, path)


def announced(job_directory: str | Path) -> HostsNote | None:
    """What the launcher has told."""
    try:
        timestamp, change = json.loads((Path(job_directory) / HOSTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return HostsNote(timestamp, change)


def leave(job_directory: str, rank: int, why: str, error: BaseException | None = None) -> NoReturn:
    """End this rank, so that the launcher starts the job again."""
    worker.tell(job_directory, {"rank": rank, "leaves": why})
    if error is not None:
        worker.record(rank, job_directory, type(error).__name__, str(error))
    script.leave(0 if error is None else 1)
