"""The transport protocol.

A transport is given requests (:class:`~hvdlite.compression.AllReduce` and its siblings), starts them without blocking, and says when
they are done. It belongs to the communication thread: nobody else calls it after construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..arrays import Array
from ..compression import Request

CONTROL = -1
"""The lane of negotiation. Lanes from 0 up carry data; requests on one lane are started in the same order on every rank."""


@dataclass(frozen=True)
class Topology:
    """Where this process stands. local: among the ranks of its node; cross: among the ranks with its local rank on all nodes."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    is_homogeneous: bool = True


class Pending(Protocol):
    """A request under way."""

    @property
    def moved(self) -> bool:
        """Whether the last look found that something had arrived: then the next look should come soon."""

    def done(self) -> bool:
        """Let it progress; whether it is finished."""

    def answer(self) -> Any:
        """What the request asked for; valid once done."""


class Transport(Protocol):
    """What the engine needs of a way to communicate."""

    topology: Topology

    def start(self, request: Request, lane: int) -> Pending:
        """Begin a request. Its arrays must stay untouched until it is done; an :class:`AllReduce` or broadcast may fill its array in place."""

    @property
    def is_wide(self) -> bool:
        """Whether this rank's connection to the others is so fast that large messages are a matter of milliseconds."""

    def set_wide(self, lane: int, wide: bool) -> None:
        """What the ranks agreed on, for the next requests of a lane: whether all connections are wide."""

    def allocate(self, num_elements: int, dtype: str) -> Array:
        """Memory for a bucket, where this transport likes it best."""

    def post(self, rank: int, note: bytes) -> None:
        """Send a short message to the communication thread of another rank, outside all collectives."""

    def notes(self) -> list[tuple[int, bytes]]:
        """``(sender, message)`` of what was posted to this rank since the last call."""

    def close(self) -> None:
        """Free what was taken. Called once, after the last request, on every rank."""

    def abandon(self) -> None:
        """The connection is in an unknown state: never wait for other ranks again, not even at exit."""
