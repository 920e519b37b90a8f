"""Orders to the engine itself. They are negotiated like any collective, so they take effect at the same place in the agreed order on every rank."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .negotiation import Signature, Vote
from .submissions import Program


@dataclass
class Order:
    """What orders have in common: nothing can speak against them, and they keep their place."""

    name: str
    kind: ClassVar[str]
    nbytes: int = field(default=0, init=False)

    def vote(self) -> Vote:
        """Nothing can speak against it."""
        return Vote.ALL

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

    def program(self, vote: Vote) -> Program:
        """It was done when it was dealt."""
        yield from ()
        return self.is_granted
