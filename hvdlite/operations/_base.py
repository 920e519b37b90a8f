"""What the operations share: a default answer to what the engine asks, and which arrays can be sent."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array, ops
from ..errors import HorovodInternalError, SettingError
from ..members import Members
from ..negotiation import Vote
from ..submissions import Program


class Operation:
    """What the collectives share: they run alone, and their values do not matter to the agreement."""

    kind: ClassVar[str]
    name: str
    nbytes: int = 0
    num_ranks: int
    rank: int
    present: tuple[int, ...] | None = None
    """Who does it, where other ranks have joined; None: all."""
    counts_all = False
    """A mean is divided by the number of all ranks, whoever takes part."""

    @property
    def count(self) -> int:
        """How many take part."""
        return self.num_ranks if self.present is None else len(self.present)

    @property
    def place(self) -> int:
        """This rank's number among those who take part."""
        return self.rank if self.present is None else self.present.index(self.rank)

    @property
    def divisor(self) -> int:
        """Of a mean."""
        return self.num_ranks if self.counts_all else self.count

    def take_part(self, present: tuple[int, ...] | None, *, counts_all: bool = False) -> None:
        """Before it runs: who does it, in ascending order; None: all. ``counts_all``: a mean is still divided by the number of all."""
        self.present, self.counts_all = present, counts_all

    def why_not(self, joined: Collection[int], members: Members) -> HorovodInternalError | None:
        """What speaks against running it without these; the same on every rank."""
        return None

    def by_rank(self, numbers: Sequence[int]) -> list[int]:
        """Numbers for those who take part, with zeros for the others."""
        if self.present is None:
            return list(numbers)
        found = [0] * self.num_ranks
        for rank, number in zip(self.present, numbers, strict=True):
            found[rank] = number
        return found

    def vote(self) -> Vote:
        """This rank's votes; asked once, on the communication thread."""
        return Vote.ALL

    def fusion_key(self) -> Hashable | None:
        """Ready neighbours with the same key may run as one; None: this one runs alone."""
        return None

    def fused(self, operations: Sequence[Any]) -> Program:
        """Run several as one; returns the list of their results."""
        raise AssertionError(f"{self.kind} is never fused")


def check_arrays(name: str, arrays: Sequence[Array]) -> None:
    """Raise for arrays that cannot be sent: those of objects, and those whose entries do not lie side by side, since results are written in place."""
    for array in arrays:
        ops(array)
        if isinstance(array, np.ndarray):
            if array.dtype.kind not in "biufcV" or array.dtype.hasobject or array.dtype.names:
                raise SettingError(
                    f"{name!r} has dtype {array.dtype}; numbers or booleans are expected; send other things with broadcast_object or allgather_object"
                )
            if not array.flags.c_contiguous:
                raise SettingError(f"{name!r} is not contiguous; entries that lie side by side in C order are expected; pass numpy.ascontiguousarray(x)")


def deal_out(whole: Array, arrays: Sequence[Array]) -> None:
    """Copy consecutive parts of a vector back into the arrays it was made of."""
    start = 0
    for array in arrays:
        array[...] = whole[start : start + array.size].reshape(array.shape)
        start += array.size


def check_has_rows(name: str, arrays: Sequence[Array], members: Sequence[str], why: str) -> None:
    """Raise for arrays that cannot be sent, and for scalars. ``members`` names those of a group; ``why`` a first dimension is needed."""
    check_arrays(name, arrays)
    for i, array in enumerate(arrays):
        if len(array.shape) == 0:
            raise SettingError(f"{(members[i] if members else name)!r} is a scalar; {why}, so at least one is expected; reshape it to (1,)")


def labels(name: str, arrays: Sequence[Array]) -> tuple[str, ...]:
    """What the members of a group are called in messages."""
    return tuple(f"{name}[{i}]" for i in range(len(arrays)))


def byte_vector(parts: Sequence[Array]) -> Array:
    """The memory of contiguous arrays as one vector; no copy when there is only one."""
    xp = ops(parts[0])
    return xp.as_bytes(parts[0]) if len(parts) == 1 else xp.concat([xp.as_bytes(p) for p in parts])
