"""Orders to the engine itself. They are negotiated like any collective, so they take effect at the same place in the agreed order on every rank."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from .compression import AllGather, Finish
from .errors import HorovodInternalError, UnsupportedError
from .members import Members, listed
from .negotiation import Signature, Vote
from .submissions import Program
from .transports import Pending


@dataclass
class Order:
    """What orders have in common: nothing can speak against them, and they keep their place."""

    name: str
    kind: ClassVar[str]
    nbytes: int = field(default=0, init=False)

    def vote(self) -> Vote:
        """Nothing can speak against it."""
        return Vote.ALL

    def take_part(self, present: tuple[int, ...] | None, *, counts_all: bool = False) -> None:
        """What it changes is everybody's: it runs only where all are present, or sends nothing."""

    def why_not(self, joined: Collection[int], members: Members) -> HorovodInternalError | None:
        """Ranks that have joined would not hear of it."""
        return UnsupportedError(
            f"{self.name!r} while {listed(joined, members)} joined; process sets change when every rank takes part; add and remove them before hvd.join()"
        )

    def fusion_key(self) -> Hashable | None:
        """It keeps its place."""
        return None

    def fused(self, operations: Sequence[Any]) -> Program:
        """Never."""
        raise AssertionError("orders are never fused")


@dataclass
class UseSlots(Order):
    """Sends nothing: from its place in the agreed order on, every rank deals operations to so many lanes.

    Operations of other threads may be in flight: those that were dealt stay where they are. Whoever asks first may ask again; the others
    change nothing. The result says who may.
    """

    num_slots: int
    is_granted: bool = False
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "slots"

    def __post_init__(self) -> None:
        self.signature = Signature(name=self.name, kind=self.kind, op=str(self.num_slots)).encode()

    def why_not(self, joined: Collection[int], members: Members) -> None:
        """It is not granted then."""

    def program(self, vote: Vote) -> Program:
        """It was done when it was dealt."""
        yield from ()
        return self.is_granted


class Registry(Protocol):
    """What the orders about process sets are given to. Called by the communication thread, in the same order on every rank."""

    def why_not(self, ranks: Sequence[int]) -> str | None:
        """What speaks against such a set, in words; the same on every rank."""

    def reserve(self, ranks: Sequence[int]) -> int:
        """Room in shared memory for the set, if this rank is in it: its place, or -1."""

    def open(self, ranks: Sequence[int], places: Sequence[int]) -> int:
        """Register the set. ``places``: of its ranks. Returns its number."""

    def refuse(self, set_id: int) -> bool:
        """Take no more collectives of the set. False: there is no such set."""

    def leave(self, set_id: int) -> Pending:
        """Let this rank leave the set, of which no rank takes collectives any more; done when all that can be agreed is done, and the others know."""

    def forget(self, set_id: int) -> None:
        """No rank uses it any more."""


@dataclass
class AddSet(Order):
    """Register a process set on every rank. The result is its number, or in words what speaks against it."""

    ranks: tuple[int, ...]
    registry: Registry
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "add_process_set"

    def __post_init__(self) -> None:
        self.signature = Signature(name=self.name, kind=self.kind, ranks=self.ranks).encode()

    def program(self, vote: Vote) -> Program:
        """Its ranks need to know where in shared memory the others have room."""
        problem = self.registry.why_not(self.ranks)
        if problem is not None:
            return problem
        places = yield AllGather((np.array([self.registry.reserve(self.ranks)], np.int64),))
        return self.registry.open(self.ranks, [int(places[rank][0][0]) for rank in self.ranks])


@dataclass
class RemoveSet(Order):
    """Forget a process set on every rank, after what its ranks have agreed on is done. The result says whether there was one."""

    set_id: int
    registry: Registry
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "remove_process_set"

    def __post_init__(self) -> None:
        self.signature = Signature(name=self.name, kind=self.kind, op=str(self.set_id)).encode()

    def program(self, vote: Vote) -> Program:
        """No rank leaves before all have stopped submitting, so what all have submitted is done; no memory is given back before all have left."""
        if not self.registry.refuse(self.set_id):
            return False
        yield AllGather((np.zeros(1, np.int64),))
        yield Finish(self.registry.leave(self.set_id))
        yield AllGather((np.zeros(1, np.int64),))
        self.registry.forget(self.set_id)
        return True
