"""One process: every request is its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array, numpy_dtype
from ..compression import AllGather, AllReduce, AllToAll, Broadcast
from ._base import Topology, WireRequest


@dataclass(frozen=True)
class _Done:
    value: Any
    moved: ClassVar[bool] = False

    def done(self) -> bool:
        return True

    def answer(self) -> Any:
        return self.value


class LocalTransport:
    """The transport of a world of one."""

    def __init__(self) -> None:
        self.topology = Topology()

    def start(self, request: WireRequest, lane: int) -> _Done:
        """Answer at once."""
        match request:
            case AllReduce(array, factor=factor):
                if factor != 1.0:
                    array *= factor
                return _Done(array)
            case Broadcast(array):
                return _Done(array)
            case AllGather(arrays):
                return _Done([arrays])
            case AllToAll(parts):
                return _Done([parts[0]])
        raise AssertionError(f"{type(request).__name__} is for ranks of a node")

    def sent_bytes(self, request: WireRequest) -> int:
        """None."""
        return 0

    is_wide = True

    def piece_bytes(self, lane: int) -> int:
        """There is no wire to be kept busy."""
        return 0

    def prepare(self, lane: int, wide: bool, turn: int) -> None:
        """There is no connection."""

    num_carriers, num_nodes = 0, 1

    def holds(self, array: Array) -> bool:
        """There is no such memory."""
        return False

    def allocate(self, num_elements: int, dtype: str) -> Array:
        """Ordinary memory."""
        return np.zeros(num_elements, numpy_dtype(dtype))

    def reserve(self) -> int:
        """There is no such memory."""
        return -1

    def release(self, place: int) -> None:
        """Nothing was reserved."""

    def subset(self, ranks: Sequence[int], places: Sequence[int]) -> LocalTransport:
        """A world of one again."""
        return LocalTransport()

    def post(self, rank: int, note: bytes) -> None:
        """There is nobody to write to."""
        raise ValueError(f"no rank {rank} in a world of one process")

    def notes(self) -> list[tuple[int, bytes]]:
        """Nobody wrote."""
        return []

    def close(self) -> None:
        """Nothing was taken."""

    def abandon(self) -> None:
        """Nobody is waited for."""
