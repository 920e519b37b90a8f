"""The transport protocol.

A transport is given requests (:class:`~hvdlite.compression.AllReduce` and its siblings), starts them without blocking, and says when
they are done. It belongs to the communication thread: nobody else calls it after construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

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


def topology_of(rank: int, nodes: Sequence[int]) -> Topology:
    """Where a rank stands, when ``nodes[r]`` is the node of rank r."""
    seen: dict[int, int] = {}
    local_ranks = []
    for node in nodes:
        local_ranks.append(seen.get(node, 0))
        seen[node] = local_ranks[-1] + 1
    peers = [r for r, local_rank in enumerate(local_ranks) if local_rank == local_ranks[rank]]
    return Topology(rank, len(nodes), local_ranks[rank], seen[nodes[rank]], peers.index(rank), len(peers), len(set(seen.values())) == 1)


@dataclass(frozen=True)
class NodeReduce:
    """Sum an array of the transport's own over the ranks of this node, times ``factor``. Answer: the array; in that of local rank ``owner`` lies the sum."""

    array: Array
    owner: int
    settled: bool = False
    factor: float = 1.0

    def sent_bytes(self, num_ranks: int) -> int:
        """Nothing leaves the node."""
        return 0


@dataclass(frozen=True)
class NodeShare:
    """Copy an array of the transport's own from local rank ``owner`` to every rank of this node. Answer: the array."""

    array: Array
    owner: int

    def sent_bytes(self, num_ranks: int) -> int:
        """Nothing leaves the node."""
        return 0


@dataclass(frozen=True)
class Across:
    """A request among one rank of each node: those with this local rank, in the order of the nodes."""

    request: Request

    def sent_bytes(self, num_ranks: int) -> int:
        """Those of the request, for so many nodes."""
        return self.request.sent_bytes(num_ranks)


WireRequest: TypeAlias = Request | NodeReduce | NodeShare | Across
"""The last three are for transports that know nodes."""


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

    def start(self, request: WireRequest, lane: int) -> Pending:
        """Begin a request. Its arrays must stay untouched until it is done; an :class:`AllReduce` or broadcast may fill its array in place."""

    def sent_bytes(self, request: WireRequest) -> int:
        """Bytes that this rank sends for a request."""

    @property
    def num_carriers(self) -> int:
        """Ranks of each node that carry across the nodes, those of the lowest local ranks; 0 where nodes make no difference."""

    @property
    def num_nodes(self) -> int:
        """Nodes of the job, of whatever size; 1 where they make no difference."""

    def holds(self, array: Array) -> bool:
        """Whether the array lies in memory that :meth:`allocate` gave and all ranks of the node see."""

    @property
    def is_wide(self) -> bool:
        """Whether this rank's connection to the others is so fast that large messages are a matter of milliseconds."""

    def prepare(self, lane: int, wide: bool, turn: int) -> None:
        """What the ranks agreed on for the next requests of a lane: whether all connections are wide, and the operation's number in the agreed order."""

    def piece_bytes(self, lane: int) -> int:
        """The answer to :class:`~hvdlite.compression.PieceBytes` of what runs on a lane, the same on all ranks that ask."""

    def allocate(self, num_elements: int, dtype: str) -> Array:
        """Memory for a bucket, where this transport likes it best."""

    def reserve(self) -> int:
        """Room for the exchanges of a process set: its place in the memory that the ranks of a node share; -1 where there is none."""

    def release(self, place: int) -> None:
        """Give back what :meth:`reserve` gave, when no rank uses it any more."""

    def subset(self, ranks: Sequence[int], places: Sequence[int]) -> Transport:
        """A transport of some ranks, which all call this at the same place in the agreed order. It waits for them.

        Args:
            ranks: of this transport, in ascending order; this one is among them. They are numbered from 0 in the new one.
            places: what each of them reserved.
        """

    def post(self, rank: int, note: bytes) -> None:
        """Send a short message to the communication thread of another rank, outside all collectives."""

    def notes(self) -> list[tuple[int, bytes]]:
        """``(sender, message)`` of what was posted to this rank since the last call."""

    def close(self) -> None:
        """Free what was taken. Called once, after the last request, on every rank."""

    def abandon(self) -> None:
        """The connection is in an unknown state: never wait for other ranks again, not even at exit."""
