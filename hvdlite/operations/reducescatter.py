"""Combine over the ranks, and leave to each its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..arrays import NARROW_FLOATS, Array, dtype_name, is_floating, ops
from ..compression import AllToAll
from ..errors import UnsupportedError
from ..negotiation import Signature, Vote
from ..submissions import Program
from ..transports._shares import combine
from ._base import Operation, byte_vector, check_has_rows, labels
from ._reduction import COMBINE, Average, ReduceOp, divide, scale

_WHY = "reducescatter leaves to each rank a part of the first dimension"


@dataclass
class GroupedReduceScatterOperation(Operation):
    """Combine arrays over the ranks and leave to each rank its rows of every array. They are one unit, and travel in one message.

    The arrays stay as they are. Values are added in the order of the ranks, those of 16 bits and less in float32.
    """

    name: str
    arrays: list[Array]
    op: ReduceOp
    num_ranks: int
    rank: int
    prescale: float = 1.0
    postscale: float = 1.0
    signature: bytes = field(init=False)
    nbytes: int = field(init=False)
    kind: ClassVar[str] = "grouped_reducescatter"

    def __post_init__(self) -> None:
        names = self._labels()
        if self.op not in COMBINE:
            raise UnsupportedError(f"{self.name!r}: a reducescatter has no op={self.op.name}; Average, Sum, Min, Max or Product is expected; use an allreduce")
        check_has_rows(self.name, self.arrays, names, _WHY)
        self.nbytes = sum(int(a.nbytes) for a in self.arrays)
        self.signature = Signature(
            name=self.name,
            kind=self.kind,
            tensors=names,
            shapes=tuple(tuple(a.shape) for a in self.arrays),
            dtypes=tuple(map(dtype_name, self.arrays)),
            op=self.op.name,
            prescale=self.prescale,
            postscale=self.postscale,
        ).encode()

    def _labels(self) -> tuple[str, ...]:
        return labels(self.name, self.arrays)

    def program(self, vote: Vote) -> Program:
        """Everybody sends each rank its rows, which that rank combines. Returns this rank's rows of each array. Those of who has joined go nowhere."""
        if not self.arrays:
            return []
        given = [self._prescaled(a) for a in self.arrays]
        rows = [shared_rows(int(a.shape[0]), self.num_ranks) for a in given]
        receivers = range(self.num_ranks) if self.present is None else self.present
        parts = [byte_vector([a[share[r]] for a, share in zip(given, rows, strict=True)]) for r in receivers]
        sizes = np.broadcast_to(np.array([p.size for p in parts], np.int64), (self.count, self.count))
        received = yield AllToAll([(p,) for p in parts], sizes, self.place)
        results, start = [], 0
        for array, share in zip(given, rows, strict=True):
            shape = (share[self.rank].stop - share[self.rank].start, *array.shape[1:])
            stop = start + math.prod(shape) * array.dtype.itemsize
            results.append(self._combined([raw[start:stop] for (raw,) in received], array, shape))
            start = stop
        return results

    def _prescaled(self, array: Array) -> Array:
        if self.prescale == 1.0:
            return array
        scaled = array.copy()
        scale(scaled.reshape(-1), self.prescale)
        return scaled

    def _combined(self, raw: Sequence[Array], like: Array, shape: tuple[int, ...]) -> Array:
        """What all ranks sent of one array, given as bytes."""
        xp, dtype = ops(like), dtype_name(like)
        pieces = [xp.from_bytes(r, "uint8" if dtype == "bool" else dtype, (math.prod(shape),)) for r in raw]
        if dtype in NARROW_FLOATS:
            pieces = [xp.cast(p, "float32") for p in pieces]
        factor = self.postscale / (self.divisor if self.op is Average else 1)
        total = xp.empty(pieces[0].shape, dtype_name(pieces[0]))
        combine(pieces, COMBINE[self.op], factor if is_floating(dtype) else 1.0, [total])
        if not is_floating(dtype):
            if self.op is Average:
                divide(total, self.divisor)
            if self.postscale != 1.0:
                scale(total, self.postscale)
        return (total.view(bool) if dtype == "bool" else xp.cast(total, dtype)).reshape(shape)


class ReduceScatterOperation(GroupedReduceScatterOperation):
    """Combine an array over the ranks and leave to each rank its rows."""

    kind: ClassVar[str] = "reducescatter"

    def __init__(self, name: str, array: Array, op: ReduceOp, num_ranks: int, rank: int, prescale: float = 1.0, postscale: float = 1.0):
        super().__init__(name, [array], op, num_ranks, rank, prescale, postscale)

    def _labels(self) -> tuple[str, ...]:
        return ()

    def program(self, vote: Vote) -> Program:
        """Returns this rank's rows."""
        (result,) = yield from super().program(vote)
        return result


def shared_rows(num_rows: int, num_ranks: int) -> list[slice]:
    """The rows of each rank: equally many, and one more for the first ranks where that leaves a rest."""
    least, rest = divmod(num_rows, num_ranks)
    starts = [r * least + min(r, rest) for r in range(num_ranks + 1)]
    return [slice(a, b) for a, b in pairwise(starts)]
