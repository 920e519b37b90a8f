"""The process sets of a job: which there are, the same on every rank, and the channels of those that this rank is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from .channel import Channel, Common
from .errors import ProcessSetError
from .members import Members
from .transports import Transport


@dataclass(frozen=True)
class Entry:
    """A registered set; the channel is None on ranks outside."""

    ranks: tuple[int, ...]
    channel: Channel | None
    place: int = -1


class Registry:
    """Changed by the communication thread (:mod:`hvdlite.orders`), read by all."""

    def __init__(self, transport: Transport, common: Common):
        self._common = common
        self.everyone = Channel(transport, common, Members(range(transport.topology.size)))
        """The channel of all ranks."""
        self._entries = {0: Entry(tuple(self.everyone.members.ranks), self.everyone)}  # replaced, never changed: other threads read it
        self.channels: tuple[Channel, ...] = (self.everyone,)
        """Those of this rank."""
        self.everyone.on_departure = self._follow
        self._end: Exception | None = None

    # --- for everybody ---

    def ranks(self) -> dict[int, list[int]]:
        """The ranks of each set, by its number."""
        return {set_id: list(entry.ranks) for set_id, entry in self._entries.items()}

    def find(self, ranks: Sequence[int]) -> int | None:
        """The number of the set of these ranks, in ascending order; None if there is none."""
        return next((set_id for set_id, entry in self._entries.items() if entry.ranks == tuple(ranks)), None)

    def channel(self, set_id: int) -> Channel:
        """What this rank has in common with the set.

        Raises:
            ProcessSetError: there is no such set, or this rank is not in it.
        """
        entry = self._entries.get(set_id)
        if entry is None:
            raise ProcessSetError(f"process set {set_id} does not exist; one of {sorted(self._entries)} is expected; add it with hvd.add_process_set()")
        if entry.channel is None:
            raise ProcessSetError(
                f"rank {self.everyone.rank} is not a member of the provided process set {set_id}, which has the ranks {list(entry.ranks)}; only its members "
                "can take part in its collectives; ask process_set.included() first"
            )
        return entry.channel

    def leave_all(self, reason: Exception) -> None:
        """Leave the job: take nothing any more, and tell the other ranks."""
        self._end = reason
        for channel in self.channels:
            channel.refuse(reason)
        for channel in self.channels:
            channel.leave()

    @property
    def have_ended(self) -> bool:
        """Whether this rank has left the job, and nothing is under way any more."""
        return self._end is not None and all(channel.has_ended for channel in self.channels)

    def close_sets(self) -> None:
        """Free what the process sets have taken, after all ranks have left together."""
        for channel in self.channels[1:]:
            if channel.left_together:
                channel.close()

    def _follow(self, gone: frozenset[int]) -> None:
        """Ranks have left the job, so they have left their sets as well: this rank leaves those too, for nobody answers there."""
        for channel in self.channels[1:]:
            shared = sorted(gone & frozenset(channel.members.ranks))
            if shared:
                channel.refuse(channel.left_behind(shared[0]))
                channel.leave()

    # --- for orders ---

    def why_not(self, ranks: Sequence[int]) -> str | None:
        """What speaks against such a set, in words; the same on every rank."""
        size = self.everyone.topology.size
        if not ranks:
            return "a process set without ranks; at least one rank is expected; name those that shall communicate"
        wrong = [r for r in ranks if not 0 <= r < size]
        if wrong:
            return f"rank {wrong[0]} of process set {list(ranks)} does not exist; ranks from 0 to {size - 1} are expected; start more ranks, or leave it out"
        twice = [r for r, following in pairwise(ranks) if r == following]
        if twice:
            return f"rank {twice[0]} is twice in process set {list(ranks)}; each rank once is expected; leave one out"
        found = self.find(ranks)
        if found is not None:
            what = "the set of all ranks, hvd.global_process_set" if found == 0 else f"process set {found}"
            return f"Attempted to add a duplicate process set: {list(ranks)} is {what}; ranks that no set has are expected; use that one"
        return None

    def reserve(self, ranks: Sequence[int]) -> int:
        """Room in shared memory for the set, if this rank is in it and there is any: its place, or -1."""
        return self.everyone.transport.reserve() if self.everyone.rank in ranks and len(ranks) > 1 else -1

    def open(self, ranks: Sequence[int], places: Sequence[int]) -> int:
        """Register the set. ``places``: of its ranks. Waits for these to make communicators: they all are here, or about to be. Returns its number."""
        set_id = next(n for n in range(1, len(self._entries) + 1) if n not in self._entries)
        channel, place = None, -1
        if self.everyone.rank in ranks:
            place = places[list(ranks).index(self.everyone.rank)]
            channel = Channel(self._transport(ranks, places), self._common, Members(tuple(ranks), set_id))
            self.channels = (*self.channels, channel)
            if self._end is not None:
                channel.refuse(self._end)
                channel.leave()
        self._entries = self._entries | {set_id: Entry(tuple(ranks), channel, place)}
        return set_id

    def _transport(self, ranks: Sequence[int], places: Sequence[int]) -> Transport:
        if len(ranks) > 1:
            return self.everyone.transport.subset(ranks, places)
        from .transports.local import LocalTransport

        return LocalTransport()

    def refuse(self, set_id: int) -> bool:
        """Take no more collectives of the set. False: there is no such set."""
        entry = self._entries.get(set_id)
        if entry is None or set_id == 0:
            return False
        if entry.channel is not None:
            entry.channel.refuse(ProcessSetError(f"process set {set_id} was removed; a set that is registered is expected; add it again"))
        return True

    def leave(self, set_id: int) -> Ending:
        """Let this rank leave the set, of which no rank takes collectives any more; done when all that can be agreed is done, and the others know."""
        channel = self._entries[set_id].channel
        if channel is not None:
            channel.leave(agree_first=True)
        return Ending(channel)

    def forget(self, set_id: int) -> None:
        """No rank uses it any more."""
        entry = self._entries[set_id]
        self._entries = {n: e for n, e in self._entries.items() if n != set_id}
        if entry.channel is not None:
            self.channels = tuple(c for c in self.channels if c is not entry.channel)
            entry.channel.end()
            entry.channel.close()
            self.everyone.transport.release(entry.place)


@dataclass(frozen=True)
class Ending:
    """A channel that this rank leaves."""

    channel: Channel | None
    moved: ClassVar[bool] = False

    def done(self) -> bool:
        """Whether it has left."""
        return self.channel is None or self.channel.has_ended

    def answer(self) -> None:
        """Nothing is to be said."""
