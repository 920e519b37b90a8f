"""The timeline: what a rank communicates, and when, as a trace for chrome://tracing or https://ui.perfetto.dev.

The file is a JSON array whose end may be missing, as the format allows. Every event is written at once, so a file left by a crash opens, and shows what was
under way: an activity without an end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from ..errors import SettingError

NEGOTIATE = "NEGOTIATE_"
"""Before the name of a collective: a rank has asked for it, and waits until all have."""

_CYCLES = "cycles"


class Timeline:
    """Writes the events of one rank. A tensor has a row of its own; times are microseconds since the start of the timeline."""

    def __init__(self, path: str, rank: int, *, mark_cycles: bool = False):
        """Begin the file, replacing one that is there.

        Raises:
            SettingError: the file cannot be written.
        """
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SettingError(
                f"the timeline cannot be written to {path!r} ({error.strerror}); a file that can be made is expected; give another path"
            ) from None
        self._rank, self._mark_cycles = rank, mark_cycles
        self._lock = threading.Lock()
        self._is_open = True
        self._start = time.monotonic()
        self._rows: dict[str, int] = {}
        self._under_way: dict[str, list[tuple[str, int]]] = {}
        os.write(self._file, b"[\n")
        self._write({"name": "process_name", "ph": "M", "args": {"name": f"rank {rank}"}})

    def negotiate(self, kind: str, name: str, since: float) -> None:
        """This rank has asked for a collective, ``since`` this time of :func:`time.monotonic`, and waits until all have."""
        self._begin(kind, name, NEGOTIATE, since)

    def run(self, kind: str, name: str) -> None:
        """The collective begins to communicate."""
        self._begin(kind, name, "", time.monotonic())

    def end(self, name: str) -> None:
        """What of this name began last is over; nothing happens if the timeline is younger."""
        with self._lock:
            if self._is_open and self._under_way.get(name):
                activity, row = self._under_way[name].pop()
                self._write({"name": activity, "ph": "E", "tid": row, "ts": self._since_start_us(time.monotonic())})

    def cycle(self) -> None:
        """A round of negotiation begins; written if cycles are to be marked."""
        with self._lock:
            if self._is_open and self._mark_cycles:
                self._write({"name": "CYCLE_START", "ph": "i", "s": "p", "tid": self._row(_CYCLES), "ts": self._since_start_us(time.monotonic())})

    def close(self) -> None:
        """Complete the file. What comes later is not written; a second call does nothing."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                last = {"name": "end", "ph": "i", "s": "g", "pid": self._rank, "tid": 0, "ts": self._since_start_us(time.monotonic())}
                self._put(f"{json.dumps(last)}\n]\n")
                os.close(self._file)

    def _begin(self, kind: str, name: str, prefix: str, at: float) -> None:
        with self._lock:
            if self._is_open:
                activity, row = prefix + kind.upper(), self._row(name if name.startswith(f"{kind}.") else f"{kind}.{name}")
                self._under_way.setdefault(name, []).append((activity, row))
                self._write({"name": activity, "ph": "B", "tid": row, "ts": self._since_start_us(at)})

    def _row(self, name: str) -> int:
        if name not in self._rows:
            self._rows[name] = len(self._rows) + 1
            self._write({"name": "thread_name", "ph": "M", "tid": self._rows[name], "args": {"name": name}})
        return self._rows[name]

    def _since_start_us(self, at: float) -> float:
        return round(max(0.0, at - self._start) * 1e6, 1)

    def _write(self, event: dict[str, Any]) -> None:
        self._put(f"{json.dumps({'pid': self._rank, 'tid': 0, **event})},\n")

    def _put(self, text: str) -> None:
        try:
            os.write(self._file, text.encode())
        except OSError:  # the disk is full: a picture is not worth a training
            self._is_open = False
