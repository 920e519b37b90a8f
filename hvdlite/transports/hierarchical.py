"""Several machines: ranks of one node add up in memory, and each carries its share across the nodes.

Every byte crosses a network once a node, not once a rank. As many ranks of each node carry as the smallest node has, so nodes may
differ in size. Compressed buckets are not cut: one rank of each node, the same on all, carries a whole bucket
(:class:`~hvdlite.transports._base.Owned`), so encoding is shared out by buckets and only the hop between the nodes is compressed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..compression import AllReduce
from . import shared_memory
from ._base import Across, NodeReduce, NodeShare, Pending, Transport, WireRequest, topology_of
from ._shares import combine, shares
from .mpi import LARGE_BYTES, MpiTransport
from .shared_memory import SharedMemoryTransport


class HierarchicalTransport:
    """Shared memory inside each node, MPI between them."""

    def __init__(self, world: MpiTransport, node: SharedMemoryTransport, cross: MpiTransport | None, num_carriers: int, num_nodes: int):
        self._world, self._node, self._cross = world, node, cross
        self.topology, self.library = world.topology, world.library
        self._rank = node.topology.rank  # on this node
        self.num_carriers, self.num_nodes = num_carriers, num_nodes

    def start(self, request: WireRequest, lane: int) -> Pending:
        """Begin a request on a lane."""
        match request:
            case AllReduce(array, op, resident, settled, factor) if array.nbytes >= LARGE_BYTES * self.topology.size:
                if resident and self._node.holds(array):
                    return self._node.run(lane, self._reduce_in_place(array, op, settled, factor, lane), lambda: array)
                return self._node.run(lane, self._reduce_staged(array.reshape(-1), op, factor, lane), lambda: array)
            case NodeReduce(array, owner, settled, factor):
                return self._node.run(lane, self._gather_up(array, owner, settled, factor, lane), lambda: array)
            case NodeShare(array, owner):
                return self._node.run(lane, self._hand_out(array, owner, lane), lambda: array)
            case Across(inner):
                assert self._cross is not None, f"rank {self.topology.rank} carries nothing across the nodes"
                return self._cross.start(inner, lane)
        return self._world.start(request, lane)

    def sent_bytes(self, request: WireRequest) -> int:
        """Bytes this rank sends to other nodes, where the request goes by way of the node; else as in a flat one."""
        match request:
            case AllReduce(array) if array.nbytes >= LARGE_BYTES * self.topology.size:
                share = shares(array.size, self.num_carriers)[self._rank] if self._rank < self.num_carriers else slice(0, 0)
                return round(2 * (self.num_nodes - 1) / self.num_nodes * int((share.stop - share.start) * array.itemsize))
            case Across(inner):
                return int(inner.sent_bytes(self.num_nodes))
        return request.sent_bytes(self.topology.size)

    @property
    def is_wide(self) -> bool:
        """Of the connection between the nodes; a rank that carries nothing leaves the answer to the others."""
        return self._cross is None or self._cross.is_wide

    def prepare(self, lane: int, wide: bool, turn: int) -> None:
        """For both ways through MPI."""
        self._world.prepare(lane, wide, turn)
        if self._cross is not None:
            self._cross.prepare(lane, wide, turn)

    def piece_bytes(self, lane: int) -> int:
        """Between the nodes, if this rank carries."""
        return 0 if self._cross is None else self._cross.piece_bytes(lane)

    def allocate(self, num_elements: int, dtype: str) -> Array:
        """In the node's window."""
        return self._node.allocate(num_elements, dtype)

    def holds(self, array: Array) -> bool:
        """Whether the array lies in the node's window."""
        return self._node.holds(array)

    # --- process sets ---

    def reserve(self) -> int:
        """In the node's window."""
        return self._node.reserve()

    def release(self, place: int) -> None:
        """In the node's window."""
        self._node.release(place)

    def subset(self, ranks: Sequence[int], places: Sequence[int]) -> Transport:
        """Through the memory of each node on which the set has several ranks, if all have found room there."""
        world = self._world.subset(ranks)
        nodes, here = world.nodes, world.topology.rank
        local_ranks = [nodes[:r].count(node) for r, node in enumerate(nodes)]
        if max(local_ranks) == 0 or min(places) < 0:
            return world
        neighbours = [r for r, node in enumerate(nodes) if node == nodes[here]]
        node = self._node.part(
            world,
            topology_of(neighbours.index(here), [0] * len(neighbours)),
            [self._world.nodes[: ranks[r]].count(nodes[here]) for r in neighbours],
            [places[r] for r in neighbours],
        )
        if len(neighbours) == len(ranks):
            return node
        num_carriers = min(nodes.count(n) for n in set(nodes))
        mine = local_ranks[here]
        peers = [r for r, local_rank in enumerate(local_ranks) if local_rank == mine]
        cross = world.subset(peers) if mine < num_carriers else None
        return HierarchicalTransport(world, node, cross, num_carriers, len(set(nodes)))

    # --- actions between barriers of the node; what they yield is waited for ---

    def _reduce_in_place(self, array: Array, op: str, settled: bool, factor: float, lane: int) -> Iterator[Pending | None]:
        everyone = yield from self._node.everyone(array, settled, lane)
        yield from self._carry(everyone, op, factor, lane)
        yield None

    def _reduce_staged(self, flat: Array, op: str, factor: float, lane: int) -> Iterator[Pending | None]:
        step = self._node.staging_bytes // flat.itemsize
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            staging = [s[: piece.nbytes].view(piece.dtype) for s in self._node.next_staging(lane)]
            staging[self._rank][:] = piece
            yield None
            yield from self._carry(staging, op, factor, lane)
            yield None
            piece[:] = staging[self._rank]

    def _carry(self, everyone: list[Array], op: str, factor: float, lane: int) -> Generator[Pending | None, None, None]:
        """Combine this rank's share over the node, then over the nodes, and write it to all of the node."""
        if self._cross is None:
            return
        share = shares(everyone[0].size, self.num_carriers)[self._rank]
        mine = everyone[self._rank][share]
        combine([e[share] for e in everyone], op, 1.0, [mine])
        yield self._cross.start(AllReduce(mine, op, factor=factor), lane)  # type: ignore[arg-type]
        for rank, other in enumerate(everyone):
            if rank != self._rank:
                other[share] = mine

    def _gather_up(self, array: Array, owner: int, settled: bool, factor: float, lane: int) -> Iterator[Pending | None]:
        """All ranks of the node sum, each a part; the owner's array receives it."""
        everyone = yield from self._node.everyone(array, settled, lane)
        part = shares(array.size, len(everyone))[self._rank]
        combine([e[part] for e in everyone], "sum", factor, [everyone[owner][part]])
        yield None

    def _hand_out(self, array: Array, owner: int, lane: int) -> Iterator[Pending | None]:
        everyone = yield from self._node.everyone(array, True, lane)
        yield None  # until the owner comes, with the result in its array
        if self._rank != owner:
            np.copyto(array, everyone[owner])
        yield None  # the owner's array is the training's again only when all have read it

    def post(self, rank: int, note: bytes) -> None:
        """Through MPI."""
        self._world.post(rank, note)

    def notes(self) -> list[tuple[int, bytes]]:
        """Through MPI."""
        return self._world.notes()

    def close(self) -> None:
        """Free the communicators."""
        for transport in (self._cross, self._node, self._world):
            if transport is not None:
                transport.close()

    def abandon(self) -> None:
        """Never wait for other ranks again."""
        self._world.abandon()


def connect(world: MpiTransport, num_lanes: int, node_bytes: Any) -> HierarchicalTransport | None:
    """Make the transports inside and between the nodes; None where a node's memory is too small. Every rank calls it.

    Args:
        world: the transport of all ranks.
        num_lanes: exchanges in flight at once.
        node_bytes: tells, of a node's transport, what each of its ranks may take of shared memory; 0 if that is too little.
    """
    node = MpiTransport(num_lanes, world.node_comm)
    arena_bytes = world.smallest(node_bytes(node))
    if not arena_bytes:
        node.close()
        return None
    num_carriers = world.smallest(world.topology.local_size)
    carries = world.topology.local_rank < num_carriers
    cross_comm = world.split(world.topology.local_rank if carries else None)
    cross = MpiTransport(num_lanes, cross_comm) if carries else None
    num_nodes = -world.smallest(-(cross.topology.size if cross is not None else 0))
    return HierarchicalTransport(world, shared_memory.connect(node, num_lanes, arena_bytes), cross, num_carriers, num_nodes)
