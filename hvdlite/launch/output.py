"""The launcher's end of what the ranks print: a thread that reads every rank's pipes and shows or files what comes.

Each rank writes into two named pipes of its own, so lines of different ranks cannot tear, whatever the MPI does with output. A slow reader of ours slows the
ranks down, as with any pipe; it never costs memory.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from .lines import Screen, Stream

NAMES = ("stdout", "stderr")
_CHUNK = 64 << 10
_PARTIAL_SECONDS = 0.05  # an unfinished line of rank 0 is shown after this pause
_BLOCKED_SECONDS = 5.0  # at the end, how long a reader of ours may take without reading anything


def pipe_path(job_directory: str | Path, rank: int, name: str) -> Path:
    """The named pipe of a rank's stdout or stderr."""
    return Path(job_directory) / f"rank.{rank}.{name}"


@dataclass
class _Source:
    """One pipe: where it is read, shown and filed."""

    fd: int
    stream: Stream | None
    file: BinaryIO | None
    since: float = field(default=0.0)  # when the unfinished line began to wait


class Output:
    """The pipes of all ranks, and the thread that empties them."""

    def __init__(
        self,
        job_directory: Path,
        size: int,
        *,
        prefix: bool,
        folder: Path | None,
        shown: Collection[int] | None,
        on_broken: Callable[[], None],
        largest_size: int = 0,
        append: bool = False,
    ) -> None:
        """``largest_size``: for the width of numbers in names of files, where other jobs write there too; ``append``: after what is there."""
        self._selector = selectors.DefaultSelector()
        self._sources: list[_Source] = []
        self._on_broken = on_broken
        self._broken = False
        self._done = threading.Event()
        self._progress = 0
        screens = _screens()
        for rank in range(size):
            for number, name in enumerate(NAMES, start=1):
                path = pipe_path(job_directory, rank, name)
                os.mkfifo(path, 0o600)
                stream = Stream(screens[number - 1], self._writer(number), prefix=f"[{rank}] " if prefix else "", live=rank == 0)
                visible = shown is None or rank in shown
                # Opened for writing too: then there is no end of file before the first writer comes nor between two of them.
                source = _Source(
                    os.open(path, os.O_RDWR | os.O_NONBLOCK), stream if visible else None, _open_log(folder, rank, max(size, largest_size), name, append)
                )
                self._sources.append(source)
                self._selector.register(source.fd, selectors.EVENT_READ, source)
        self._thread = threading.Thread(target=self._run, name="hvdlite-output", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self) -> None:
        """The ranks are gone: show what is still in the pipes, unless nobody reads us."""
        self._done.set()
        seen = -1
        while self._thread.is_alive() and seen != self._progress:
            seen = self._progress
            self._thread.join(_BLOCKED_SECONDS)

    def _run(self) -> None:
        while True:
            last = self._done.is_set()
            ready = self._selector.select(0 if last else _PARTIAL_SECONDS)
            for key, _ in ready:
                self._read(key.data)
            if last and not ready:
                break
            self._show_waiting()
        for source in self._sources:
            if source.stream:
                source.stream.close()
            if source.file:
                source.file.close()

    def _read(self, source: _Source) -> None:
        try:
            data = os.read(source.fd, _CHUNK)
        except BlockingIOError:
            return
        self._progress += 1
        if source.file:
            try:
                source.file.write(data)
            except OSError as error:
                warn(f"cannot write {source.file.name} ({error}); the job goes on without this file")
                source.file = None
        if source.stream:
            source.stream.feed(data)
            source.since = time.monotonic() if source.stream.has_unshown else 0.0

    def _show_waiting(self) -> None:
        now = time.monotonic()
        for source in self._sources:
            if source.stream and source.since and now - source.since >= _PARTIAL_SECONDS:
                source.since = 0.0
                source.stream.flush()

    def _writer(self, fd: int) -> Callable[[str], None]:
        def write(text: str) -> None:
            data = memoryview(text.encode("utf-8", errors="replace"))
            while data and not self._broken:
                try:
                    data = data[os.write(fd, data) :]
                except BlockingIOError:  # somebody made our terminal non-blocking
                    time.sleep(0.01)
                except OSError:  # nobody reads us any more (| head), or the disk is full
                    self._broken = True
                    self._on_broken()

        return write


def warn(text: str) -> None:
    """One line of the launcher's own, on stderr."""
    try:
        sys.stderr.write(f"hvdliterun: {text}\n")
        sys.stderr.flush()
    except OSError:
        return


def _screens() -> tuple[Screen, Screen]:
    """The screens of stdout and stderr: one and the same if they end in the same place."""
    try:
        out, err = os.fstat(1), os.fstat(2)
        same = (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
    except OSError:
        same = False
    first = Screen(is_terminal=os.isatty(1))
    return first, first if same else Screen(is_terminal=os.isatty(2))


def _open_log(folder: Path | None, rank: int, size: int, name: str, append: bool) -> BinaryIO | None:
    """``folder/rank.0/stdout``; ranks are padded with zeros so that names sort."""
    if folder is None:
        return None
    path = folder / f"rank.{rank:0{len(str(size - 1))}d}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab" if append else "wb", buffering=0)
