"""Turns what many ranks print into one readable stream: whole lines, each with its rank, and rank 0's progress bar alive.

A :class:`Stream` is one output of one rank, a :class:`Screen` the place where streams meet. Pure: bytes go in, text comes out by a
function.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

MAX_PENDING = 64 << 10  # characters of an unfinished line that are kept; a longer line is shown in pieces
_ERASE_LINE = "\r\x1b[K"
_PIECES = re.compile(r"[^\r\n]+|\r\n|\r|\n")


class Screen:
    """A place where streams meet; it knows whose unfinished text the cursor stands behind.

    On a terminal an unfinished line gives way to another stream's line and is drawn again below it. Elsewhere it is ended first.
    """

    def __init__(self, *, is_terminal: bool = False) -> None:
        self._is_terminal = is_terminal
        self._owner: Stream | None = None

    def line(self, stream: Stream, text: str) -> None:
        """Show a whole line (without its end)."""
        owner = self._owner
        if owner is None or owner is stream:
            self._owner = None
            stream.write(text + "\n")
        elif self._is_terminal:
            stream.write(_ERASE_LINE + text + "\n")
            owner.write(owner.shown)
        else:
            self.release()
            stream.write(text + "\n")

    def part(self, stream: Stream, text: str) -> None:
        """Show text that another part of the same stream will follow."""
        if self._owner is not stream:
            self.release()
            self._owner = stream
        stream.write(text)

    def owns(self, stream: Stream) -> bool:
        """Whether the cursor stands behind this stream's unfinished text."""
        return self._owner is stream

    def release(self) -> None:
        """End the unfinished line, if any."""
        if self._owner is not None:
            self._owner.write("\n")
            self._owner = None


class Stream:
    """One output of one rank.

    A ``live`` stream (rank 0's) shows progress lines that end in ``\\r`` as they come; any other stream keeps the last state of such a line and shows it
    once it is complete. ``flush`` shows what is unfinished.
    """

    def __init__(self, screen: Screen, write: Callable[[str], None], *, prefix: str = "", live: bool = True) -> None:
        self.write = write
        self._screen = screen
        self._prefix = prefix
        self._live = live
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""  # of the unfinished line, what is not shown
        self._returned = False  # a \r was the last thing seen: what follows overwrites the line, unless it is \n
        self.shown = ""  # of the unfinished line, what is shown

    def feed(self, data: bytes) -> None:
        """Take what the rank wrote."""
        self._take(self._decoder.decode(data))

    def flush(self) -> None:
        """Show the unfinished line of a live stream."""
        if self._live:
            self._show_pending()

    def close(self) -> None:
        """The rank ended: show what is left, as a line."""
        self._take(self._decoder.decode(b"", final=True))
        if self._pending or self.shown:
            self._end_line()

    @property
    def has_unshown(self) -> bool:
        """Whether :meth:`flush` would show something."""
        return self._live and bool(self._pending)

    def _take(self, text: str) -> None:
        for piece in _PIECES.findall(text):
            if piece in ("\n", "\r\n"):
                self._end_line()
            elif piece == "\r":
                self._carriage_return()
            else:
                self._append(piece)

    def _append(self, text: str) -> None:
        if self._returned:
            self._returned = False
            if self._live:
                self._rewind()
            else:
                self._pending = ""
        self._pending += text
        if len(self._pending) > MAX_PENDING:
            self._show_pending()

    def _carriage_return(self) -> None:
        if self._live:
            self._show_pending()
        self._returned = True

    def _rewind(self) -> None:
        """The next text overwrites the line: go back to its start, if it is still where the cursor is."""
        if self.shown and self._screen.owns(self):
            self._screen.part(self, "\r")
        self.shown = ""

    def _show_pending(self) -> None:
        if not self._pending:
            return
        text, self._pending = self._pending, ""
        if not self._screen.owns(self):
            self.shown = ""
        if not self.shown:
            text = self._prefix + text
        self._screen.part(self, text)
        self.shown = (self.shown + text)[-4096:]

    def _end_line(self) -> None:
        self._returned = False
        text, self._pending = self._pending, ""
        interrupted = bool(self.shown) and not self._screen.owns(self)
        start = "" if self.shown and not interrupted else self._prefix
        self.shown = ""
        if text or not interrupted:
            self._screen.line(self, start + text)
