"""Send rows to each rank, and receive some from each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..arrays import Array, dtype_name, ops
from ..compression import AllGather, AllToAll
from ..errors import SettingError
from ..negotiation import Signature, Vote
from ..submissions import Program
from ._base import Operation, check_has_rows


@dataclass
class AllToAllOperation(Operation):
    """Deal an array's rows to the ranks, the first ``splits[0]`` to rank 0 and so on, and collect what they deal to this one, in their order.

    Without splits, every rank gets equally many. First dimensions and splits may differ from rank to rank.
    """

    name: str
    array: Array
    splits: Sequence[int] | Array | None
    num_ranks: int
    rank: int
    signature: bytes = field(init=False)
    nbytes: int = field(init=False)
    kind: ClassVar[str] = "alltoall"

    def __post_init__(self) -> None:
        check_has_rows(self.name, [self.array], (), "alltoall deals rows to the ranks")
        self.nbytes = int(self.array.nbytes)
        self._splits = _checked(self.name, self.splits, int(self.array.shape[0]), self.num_ranks)
        self.signature = Signature(name=self.name, kind=self.kind, shapes=((-1, *self.array.shape[1:]),), dtypes=(dtype_name(self.array),)).encode()

    def program(self, vote: Vote) -> Program:
        """First everybody's splits, then the bytes. Returns ``(received rows, how many came from each rank)``. Rows for who has joined go nowhere."""
        xp, rest = ops(self.array), tuple(self.array.shape[1:])
        receivers = list(range(self.num_ranks) if self.present is None else self.present)
        splits = np.stack([row for (row,) in (yield AllGather((self._splits,)))])  # [sender, receiver]
        sizes = splits * (math.prod(rest) * self.array.dtype.itemsize)
        raw, ends = xp.as_bytes(self.array), np.cumsum(sizes[self.place])
        parts = [(raw[ends[r] - sizes[self.place, r] : ends[r]],) for r in receivers]
        received = yield AllToAll(parts, np.ascontiguousarray(sizes[:, receivers]), self.place)
        lengths = splits[:, self.rank].tolist()
        return xp.from_bytes(xp.concat([row for (row,) in received]), dtype_name(self.array), (sum(lengths), *rest)), self.by_rank(lengths)


def _checked(name: str, splits: Sequence[int] | Array | None, num_rows: int, num_ranks: int) -> Array:
    """The rows for each rank.

    Raises:
        SettingError: they are no whole numbers, too few or too many, negative, or not as many as there are rows.
    """
    if splits is None:
        if num_rows % num_ranks:
            raise SettingError(
                f"{name!r} has {num_rows} rows, which {num_ranks} ranks cannot share equally; a multiple of {num_ranks} is expected; "
                "pass splits, the number of rows for each rank"
            )
        return np.full(num_ranks, num_rows // num_ranks, np.int64)
    given = np.asarray(splits)
    if given.shape != (num_ranks,):
        raise SettingError(f"splits of {name!r} have shape {given.shape}; one number for each of the {num_ranks} ranks is expected; give (size,) of them")
    if given.dtype.kind not in "iu":
        raise SettingError(f"splits of {name!r} have dtype {given.dtype}; whole numbers of rows are expected; convert them to int32")
    if (given < 0).any():
        raise SettingError(f"splits of {name!r} are {given.tolist()}; no negative number of rows is expected; give 0 to a rank that shall get none")
    if int(given.sum()) != num_rows:
        raise SettingError(
            f"splits of {name!r} are {given.tolist()}, together {int(given.sum())}, and it has {num_rows} rows; every row is expected to go to one rank; "
            "correct the splits, or pass only the rows to be sent"
        )
    return given.astype(np.int64)
