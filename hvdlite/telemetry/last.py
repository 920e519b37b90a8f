"""The last collective a rank began, in a file that survives the rank, for the launcher's report of a failure."""

from __future__ import annotations

import mmap
import os

_BYTES = 256


class LastCollective:
    """A small memory-mapped file: writing costs a memory copy, and a killed process has still written."""

    def __init__(self, directory: str | None, rank: int):
        self._map: mmap.mmap | None = None
        if directory is None:
            return
        try:
            descriptor = os.open(os.path.join(directory, f"rank.{rank}.last"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:  # the job's folder is gone or full: a report is not worth a training
            return
        try:
            os.posix_fallocate(descriptor, 0, _BYTES)  # now, because a full disk would answer a later write with SIGBUS
            self._map = mmap.mmap(descriptor, _BYTES)
        except OSError:
            return
        finally:
            os.close(descriptor)

    def write(self, kind: str, name: str) -> None:
        """Note that ``kind`` of ``name`` begins."""
        if self._map is not None:
            self._map[:] = f"{kind} {name!r}".encode()[:_BYTES].ljust(_BYTES, b"\0")
