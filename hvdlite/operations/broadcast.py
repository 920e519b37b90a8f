"""Copy from one rank to all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..arrays import Array, dtype_name, ops
from ..compression import Broadcast
from ..errors import HorovodInternalError, MismatchError
from ..members import Members
from ..negotiation import Signature, Vote
from ..submissions import Program
from ._base import Operation, check_arrays, deal_out

_TOGETHER_BYTES = 4 << 20


@dataclass
class BroadcastOperation(Operation):
    """Copy arrays of one rank to all, in place."""

    name: str
    arrays: list[Array]
    root: int
    layout: Sequence[tuple[str, tuple[int, ...]]] = ()
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "broadcast"

    def __post_init__(self) -> None:
        check_arrays(self.name, self.arrays)
        self.nbytes = sum(int(a.nbytes) for a in self.arrays)
        self.signature = Signature(
            name=self.name,
            kind=self.kind,
            tensors=tuple(n for n, _ in self.layout),
            shapes=tuple(tuple(a.shape) for a in self.arrays),
            dtypes=tuple(dtype_name(a) for a in self.arrays),
            root=self.root,
        ).encode()

    def why_not(self, joined: Collection[int], members: Members) -> HorovodInternalError | None:
        """The root must be there."""
        if self.root not in joined:
            return None
        root = members.ranks[self.root]
        return MismatchError(
            f"{self.name!r} is broadcast from rank {root}, which has joined; a root that takes part is expected; pass the number of a rank that goes on, "
            "or broadcast after hvd.join()"
        )

    def program(self, vote: Vote) -> Program:
        """Arrays of one dtype travel together, up to a size at which another message costs nothing."""
        together: dict[str, list[Array]] = {}
        size: Counter[str] = Counter()
        for array in self.arrays:
            dtype = dtype_name(array)
            if size[dtype] + array.nbytes > _TOGETHER_BYTES and dtype in together:
                yield from self._sent(together.pop(dtype))
                del size[dtype]
            together.setdefault(dtype, []).append(array)
            size[dtype] += array.nbytes
        for arrays in together.values():
            yield from self._sent(arrays)
        return self.arrays

    def _sent(self, arrays: list[Array]) -> Program:
        root = self.root if self.present is None else self.present.index(self.root)
        if len(arrays) == 1:
            yield Broadcast(arrays[0], root)
            return
        whole = ops(arrays[0]).concat(arrays)
        yield Broadcast(whole, root)
        deal_out(whole, arrays)
