"""Concatenate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

import numpy as np

from ..arrays import Array, dtype_name, ops
from ..compression import AllGather
from ..negotiation import Signature, Vote
from ..submissions import Program
from ._base import Operation, byte_vector, check_has_rows, labels

_WHY = "allgather concatenates along the first dimension"


@dataclass
class GroupedAllGatherOperation(Operation):
    """Concatenate arrays of all ranks along their first dimensions, which may differ. They are one unit, and travel in one message.

    ``names`` are what messages call the arrays; ranks must agree on them.
    """

    name: str
    arrays: list[Array]
    num_ranks: int
    names: Sequence[str] = ()
    signature: bytes = field(init=False)
    nbytes: int = field(init=False)
    kind: ClassVar[str] = "grouped_allgather"

    def __post_init__(self) -> None:
        names = self._labels()
        check_has_rows(self.name, self.arrays, names, _WHY)
        self.nbytes = sum(int(a.nbytes) for a in self.arrays)
        shapes = tuple((-1, *a.shape[1:]) for a in self.arrays)
        self.signature = Signature(name=self.name, kind=self.kind, tensors=names, shapes=shapes, dtypes=tuple(map(dtype_name, self.arrays))).encode()

    def _labels(self) -> tuple[str, ...]:
        return tuple(self.names) or labels(self.name, self.arrays)

    def program(self, vote: Vote) -> Program:
        """First the lengths, then the bytes. Returns ``(whole array, first dimension of each rank)`` for each array."""
        if not self.arrays:
            return []
        lengths = np.stack([n for (n,) in (yield AllGather((np.array([a.shape[0] for a in self.arrays], np.int64),)))])  # [rank, array]
        row_bytes = np.array([math.prod(a.shape[1:]) * a.dtype.itemsize for a in self.arrays], np.int64)
        sizes = lengths * row_bytes
        by_rank = yield AllGather((byte_vector(self.arrays),), tuple(int(n) for n in sizes.sum(axis=1)))
        ends = [list(accumulate(row.tolist())) for row in sizes]
        results = []
        for i, array in enumerate(self.arrays):
            pieces = [raw[end[i] - int(size[i]) : end[i]] for (raw,), end, size in zip(by_rank, ends, sizes, strict=True)]
            rows = lengths[:, i].tolist()
            results.append((self._joined(array, pieces, sum(rows)), self.by_rank(rows)))
        return results

    @staticmethod
    def _joined(like: Array, pieces: list[Array], num_rows: int) -> Array:
        xp = ops(like)
        return xp.from_bytes(xp.concat(pieces), dtype_name(like), (num_rows, *like.shape[1:]))


class AllGatherOperation(GroupedAllGatherOperation):
    """Concatenate arrays of all ranks along the first dimension, which may differ."""

    kind: ClassVar[str] = "allgather"

    def __init__(self, name: str, array: Array, num_ranks: int):
        super().__init__(name, [array], num_ranks)

    def _labels(self) -> tuple[str, ...]:
        return ()

    def program(self, vote: Vote) -> Program:
        """Returns ``(whole array, first dimension of each rank)``."""
        (result,) = yield from super().program(vote)
        return result
