"""Which hosts an elastic job may use, and how many ranks run on each. Pure: who asks, passes the time."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import SettingError

_SHORTEST_COOLDOWN, _LONGEST_COOLDOWN = 1, 3600  # seconds
_LINE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(\d+)|\s+slots=(\d+))?")


@dataclass
class _Host:
    slots: int
    failures: int = 0
    barred_until: float | None = None  # None: it is not on the blacklist


class KnownHosts:
    """The hosts that are there, the oldest first, less those on the blacklist.

    A host on which a rank fails is put on the blacklist, for good or for a time that doubles with each failure. The only host of a job never is: there the
    ranks are started again, and it is up to the caller to see that it is not in vain.
    """

    def __init__(self, cooldown_seconds: tuple[float, float] | None = None):
        if cooldown_seconds is not None:
            low, high = cooldown_seconds
            if not _SHORTEST_COOLDOWN <= low <= high <= _LONGEST_COOLDOWN:
                raise SettingError(
                    f"--blacklist-cooldown-range {low:g} {high:g} cannot be used; a shortest and a longest time from {_SHORTEST_COOLDOWN} to "
                    f"{_LONGEST_COOLDOWN} seconds are expected; write e.g. --blacklist-cooldown-range 10 100"
                )
        self._cooldown = cooldown_seconds
        self._hosts: dict[str, _Host] = {}  # those that are there
        self._seen: dict[str, _Host] = {}  # ever: who is on the blacklist stays there, also after going and coming

    def found(self, slots: Mapping[str, int]) -> None:
        """These hosts are there now, with so many slots. Those that were there before keep their place."""
        kept = [name for name in self._hosts if name in slots]
        self._hosts = {name: self._seen.setdefault(name, _Host(0)) for name in [*kept, *slots]}
        for name, host in self._hosts.items():
            host.slots = slots[name]

    def failed(self, name: str, now: float) -> bool:
        """A rank failed there; whether the host is on the blacklist from now on."""
        host = self._hosts.get(name)
        if host is None or len(self._hosts) == 1:
            return False
        host.failures += 1
        if self._cooldown is None:
            host.barred_until = float("inf")
        else:
            low, high = self._cooldown
            host.barred_until = now + min(high, low * 2.0 ** (host.failures - 1) + random.uniform(0, low))
        return True

    def available(self, now: float) -> dict[str, int]:
        """Slots by host, blacklisted ones left out."""
        for host in self._hosts.values():
            if host.barred_until is not None and host.barred_until <= now:
                host.barred_until = None
        return {name: host.slots for name, host in self._hosts.items() if host.barred_until is None and host.slots}

    def are_barred_for_good(self) -> bool:
        """Whether every host there is failed, and none will be let in again."""
        return bool(self._hosts) and all(host.barred_until == float("inf") for host in self._hosts.values())


def assign(slots: Mapping[str, int], most: int | None) -> tuple[str, ...]:
    """The host of each rank: all slots in the order of hosts, at most so many."""
    ranks = [name for name, number in slots.items() for _ in range(number)]
    return tuple(ranks[:most])


def parse(text: str, default_slots: int | None, origin: str) -> dict[str, int]:
    """Hosts and slots, one a line: ``host:4``, ``host slots=4`` or ``host``; a ``#`` begins a comment.

    Raises:
        SettingError: a line is none of these, or gives no slots where there is no default.
    """
    found: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise SettingError(f"{origin}, line {number}: {line!r} names no host; e.g. localhost:2 is expected; correct it")
        given = match[2] or match[3]
        if given is None and default_slots is None:
            raise SettingError(f"{origin}, line {number}: {line!r} gives no number of slots; e.g. {match[1]}:2 is expected; add it, or give --slots-per-host 2")
        found[match[1]] = found.get(match[1], 0) + (int(given) if given is not None else default_slots or 0)
    return found
