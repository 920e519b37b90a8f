"""What the operations share: a default answer to what the engine asks, and which arrays can be sent."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array, ops
from ..engine import Program
from ..errors import SettingError
from ..negotiation import Vote


class Operation:
    """What the collectives share: they run alone, and their values do not matter to the agreement."""

    kind: ClassVar[str]
    nbytes: int = 0

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
