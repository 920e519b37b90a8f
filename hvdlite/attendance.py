"""Who takes part in what a set of ranks agrees on: all of them, or those that have not joined yet."""

from __future__ import annotations

from collections.abc import Sequence

from .transports import Transport


class Attendance:
    """The ranks of a channel that are present, and the transport among them. Ranks that have joined take part in the agreement alone.

    While some are absent, what is agreed runs on a transport of those present, so operations and compressors see a smaller group and nothing else.
    """

    def __init__(self, transport: Transport):
        self._whole = transport
        self._everyone = tuple(range(transport.topology.size))
        self._parts: list[Transport] = []
        self.present: tuple[int, ...] = self._everyone
        """As agreed last."""
        self.in_use: tuple[int, ...] = self._everyone
        """Of those :attr:`transport` is made for."""
        self.transport = transport
        self.num_joins = 0
        """How often all ranks have joined; the same on every rank."""

    @property
    def joined(self) -> frozenset[int]:
        """Those who have joined."""
        return frozenset(self._everyone) - frozenset(self.present)

    @property
    def is_whole(self) -> bool:
        """Whether nobody has joined."""
        return self.present is self._everyone

    @property
    def runs_whole(self) -> bool:
        """Whether :attr:`transport` is that of all ranks."""
        return self.in_use is self._everyone

    @property
    def has_changed(self) -> bool:
        """Whether the transport is made for others than are present."""
        return self.present != self.in_use

    def without(self, joined: frozenset[int]) -> None:
        """These have joined, as agreed."""
        self.present = tuple(r for r in self._everyone if r not in joined) if joined else self._everyone

    def follow(self) -> None:
        """Make the transport for those present, who all call this; it waits for them. Nothing is under way on the one before."""
        self.in_use = self.present
        self.transport = self._part(self.present)
        self._parts.append(self.transport)

    def begin_anew(self) -> None:
        """All have joined, so all are present again. Nothing is under way anywhere."""
        self.close()
        self.present = self.in_use = self._everyone
        self.transport = self._whole
        self.num_joins += 1

    def close(self) -> None:
        """Free what was made for some."""
        for transport in self._parts:
            transport.close()
        self._parts = []

    def _part(self, ranks: Sequence[int]) -> Transport:
        if len(ranks) == 1:
            from .transports.local import LocalTransport

            return LocalTransport()
        return self._whole.subset(ranks, [-1] * len(ranks))
