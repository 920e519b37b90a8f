"""Who communicates with each other: all ranks, or those of a process set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Members:
    """The ranks of a set. Among themselves they are numbered from 0, in this order; messages give the numbers that users know."""

    ranks: Sequence[int]
    set_id: int = 0

    @property
    def where(self) -> str:
        """``" in process set 3"``, to be put behind the name of a tensor; nothing for the set of all ranks."""
        return f" in {self.set_name}" if self.set_id else ""

    @property
    def set_name(self) -> str:
        """``"process set 3"``."""
        return f"process set {self.set_id}"


def listed(ranks: Collection[int], members: Members) -> str:
    """``"rank 1 has"``, ``"ranks 1, 2 have"``: of a set's ranks, by the numbers that users know."""
    shown = ", ".join(str(members.ranks[r]) for r in sorted(ranks))
    return f"rank {shown} has" if len(ranks) == 1 else f"ranks {shown} have"
