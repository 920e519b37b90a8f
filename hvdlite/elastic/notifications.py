"""Tells a state that the launcher sees other hosts."""

from __future__ import annotations

import threading
from enum import IntFlag
from typing import Protocol

from .. import settings
from ..launch import handover
from ..world import rank

LOOK_SECONDS = 0.2


class HostUpdateResult(IntFlag):
    """What has happened to the hosts."""

    no_update = 0
    removed = handover.REMOVED
    added = handover.ADDED
    mixed = removed | added


class Listener(Protocol):
    """Who wants to know."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have changed."""


class Notifications:
    """While it is open, rank 0 of an elastic job looks for the launcher's notes and passes each on to the listener."""

    def __init__(self, listener: Listener):
        self._listener = listener
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        directory = settings.job_directory()
        if settings.elastic_directory() is not None and directory is not None and rank() == 0:
            self._thread = threading.Thread(target=self._look, args=(directory,), name="hvdlite-hosts", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, directory: str) -> None:
        heard = 0.0
        while not self._over.wait(LOOK_SECONDS):
            note = handover.announced(directory)
            if note is not None and note.timestamp > heard:
                heard = note.timestamp
                self._listener.on_hosts_updated(note.timestamp, note.change)
