"""Wait for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..negotiation import Signature, Vote
from ..submissions import Program
from ._base import Operation


@dataclass
class BarrierOperation(Operation):
    """Nothing moves: that all ranks agreed is the barrier."""

    name: str
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "barrier"

    def __post_init__(self) -> None:
        self.signature = Signature(name=self.name, kind=self.kind).encode()

    def program(self, vote: Vote) -> Program:
        """Done as soon as it begins."""
        yield from ()
