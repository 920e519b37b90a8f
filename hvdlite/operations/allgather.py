"""Concatenate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..arrays import Array, dtype_name, ops
from ..compression import AllGather
from ..engine import Program
from ..errors import SettingError
from ..negotiation import Signature, Vote
from ._base import Operation, check_arrays


@dataclass
class AllGatherOperation(Operation):
    """Concatenate arrays of all ranks along the first dimension, which may differ."""

    name: str
    array: Array
    num_ranks: int
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "allgather"

    def __post_init__(self) -> None:
        check_arrays(self.name, [self.array])
        if len(self.array.shape) == 0:
            raise SettingError(f"{self.name!r} is a scalar; allgather concatenates along the first dimension, so at least one is expected; reshape it to (1,)")
        self.nbytes = int(self.array.nbytes)
        self.signature = Signature(name=self.name, kind=self.kind, shapes=((-1, *self.array.shape[1:]),), dtypes=(dtype_name(self.array),)).encode()

    def program(self, vote: Vote) -> Program:
        """First the lengths, then the bytes. Returns ``(whole array, first dimension of each rank)``."""
        xp, rest, dtype = ops(self.array), tuple(self.array.shape[1:]), dtype_name(self.array)
        lengths = [int(n[0]) for (n,) in (yield AllGather((np.array([self.array.shape[0]], np.int64),)))]
        raw = xp.as_bytes(self.array)
        row_bytes = math.prod(rest) * self.array.dtype.itemsize
        rows = yield AllGather((raw,), tuple(n * row_bytes for n in lengths))
        return xp.from_bytes(xp.concat([row for (row,) in rows]), dtype, (sum(lengths), *rest)), lengths
