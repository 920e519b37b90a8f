"""Who keeps the others waiting: ranks that wait too long ask every rank what it has submitted and where its main thread is."""

from __future__ import annotations

import logging
import os
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence

import msgspec

from .errors import StalledError
from .members import Members
from .settings import Settings
from .transports import Transport

LOG = logging.getLogger("hvdlite")

ANSWER_SECONDS = 2.0
"""How long a rank that asks waits for the answers."""
LOOK_SECONDS = 0.1
"""How often a busy or waiting rank looks for questions."""
_MAX_NAMES, _MAX_NAME_BYTES = 20, 16 << 10  # in a note


class _Ask(msgspec.Struct, tag="ask", frozen=True):
    names: list[str]


class _Tell(msgspec.Struct, tag="tell", frozen=True):
    has: list[str]
    waits_for: list[str]
    where: str
    host: str
    pid: int
    has_joined: bool = False


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(_Ask | _Tell).decode


class StallWatch:
    """One rank's view of who is late."""

    def __init__(self, transport: Transport, settings: Settings, members: Members | None = None):
        self._transport = transport
        self._members = members or Members(range(transport.topology.size))
        self._warn_after = settings.stall_warning_seconds
        self._fail_after = settings.stall_shutdown_seconds
        self._asked_at = 0.0
        self._told: dict[int, _Tell] = {}
        self._quiet_until = 0.0
        self._looked_at = 0.0

    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._looked_at > LOOK_SECONDS

    def look(self, waiting: Sequence[tuple[str, float]], *, has_joined: bool = False) -> StalledError | None:
        """Answer other ranks' questions; ask and report when something here has waited too long.

        Args:
            waiting: ``(name, since when)`` of everything this rank waits for.
            has_joined: this rank keeps nobody waiting.
        Returns:
            The error with which to give up, when the limit for that is passed.
        """
        now = self._looked_at = time.monotonic()
        self._answer(waiting, has_joined)
        if not waiting:
            self._asked_at = 0.0
            return None
        names = _some([name for name, _ in waiting])
        longest = now - min(since for _, since in waiting)
        if self._asked_at and now - self._asked_at > ANSWER_SECONDS:
            return self._conclude(names, longest)
        limit = min(filter(None, (self._warn_after, self._fail_after)), default=0)
        if limit and longest > limit and not self._asked_at and now > self._quiet_until:
            self._asked_at, self._told = now, {}
            for rank in self._others():
                self._transport.post(rank, _ENCODE(_Ask(names)))
        return None

    def _others(self) -> list[int]:
        topology = self._transport.topology
        return [r for r in range(topology.size) if r != topology.rank]

    def _answer(self, waiting: Sequence[tuple[str, float]], has_joined: bool) -> None:
        mine = [name for name, _ in waiting]
        for sender, raw in self._transport.notes():
            try:
                note = _DECODE(raw)
            except msgspec.MsgspecError:  # cut off, or from another version: as good as no answer
                continue
            match note:
                case _Ask(names):
                    tell = _Tell([n for n in names if n in mine], _some(mine), where_is_the_main_thread(), socket.gethostname(), os.getpid(), has_joined)
                    self._transport.post(sender, _ENCODE(tell))
                case tell:
                    self._told[sender] = tell

    def _conclude(self, names: list[str], longest: float) -> StalledError | None:
        report = self._report(names, longest)
        self._asked_at = 0.0
        now = time.monotonic()
        self._quiet_until = now + max(self._warn_after, 1.0)
        if self._fail_after >= longest:
            self._quiet_until = min(self._quiet_until, now + self._fail_after - longest)
        first_to_wait = all(rank > self._transport.topology.rank for rank, tell in self._told.items() if not tell.has_joined and set(names) <= set(tell.has))
        if self._fail_after and longest > self._fail_after:
            return StalledError(report)
        if first_to_wait:
            LOG.warning(report)
        return None

    def _report(self, names: list[str], longest: float) -> str:
        mine = self._members.ranks[self._transport.topology.rank]
        lines = [f"rank {mine} has waited {longest:.0f} s for {_listed(names)}{self._members.where}; every rank must submit it; look at"]
        for rank in self._others():
            tell, shown = self._told.get(rank), self._members.ranks[rank]
            if tell is None:
                lines.append(f"  rank {shown}: does not answer (stopped, or lost)")
            elif not tell.has_joined and (missing := [n for n in names if n not in tell.has]):
                waits = f"waits for {_listed(tell.waits_for)}" if tell.waits_for else "waits for nothing"
                lines.append(
                    f"  rank {shown} (host {tell.host}, pid {tell.pid}): has not submitted {_listed(missing)}; it {waits}; its main thread is at {tell.where}"
                )
        if len(lines) == 1:
            lines.append("  no rank in particular: all have submitted it, the network does not deliver")
        return "\n".join(lines)


def where_is_the_main_thread() -> str:
    """``file:line in function`` of the innermost frame that is the user's own."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    own = (os.path.dirname(__file__), sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"])
    innermost = frame
    while frame is not None and (
        frame.f_code.co_filename.startswith(own) or "site-packages" in frame.f_code.co_filename or frame.f_code.co_filename.startswith("<")
    ):
        frame = frame.f_back
    found = frame or innermost
    return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}" if found else "an unknown place"


def _some(names: Sequence[str]) -> list[str]:
    """The first of them, as many as fit into a note."""
    room, found = _MAX_NAME_BYTES, []
    for name in names[:_MAX_NAMES]:
        room -= len(name.encode())
        if room < 0:
            break
        found.append(name)
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(n) for n in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
