"""Exchange a copy of a bucket as a compressor would, beside the exchange that counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..arrays import Array, dtype_name
from ..compression import Bucket, Compressor, Finish, PieceBytes, Start
from ..negotiation import Signature, Vote
from ..submissions import Program
from ._base import Operation


@dataclass(frozen=True)
class Exchanged:
    """What came of it on this rank."""

    mean: Array
    sent_bytes: int
    encode_ms: float
    """Work until the first answer of the others is there."""
    decode_ms: float
    """Work after that."""


@dataclass
class ShadowOperation(Operation):
    """``given`` (one float32 vector, which it may change) through ``compressor``; ``layout`` names and shapes its parts. Returns :class:`Exchanged`."""

    name: str
    given: Array
    layout: Sequence[tuple[str, tuple[int, ...]]]
    num_ranks: int
    rank: int
    compressor: Compressor
    signature: bytes = field(init=False)
    kind: ClassVar[str] = "shadow"

    def __post_init__(self) -> None:
        self.nbytes = int(self.given.nbytes)
        self.signature = Signature(
            name=self.name,
            kind=self.kind,
            tensors=tuple(n for n, _ in self.layout),
            shapes=tuple(s for _, s in self.layout),
            dtypes=(dtype_name(self.given),),
            compression=self.compressor.signature,
        ).encode()

    def program(self, vote: Vote) -> Program:
        """Play the compressor's exchange, with a watch and a counter at each of its requests."""
        exchange = self.compressor.exchange(Bucket.of(self.given, self.layout, self.rank, self.num_ranks))
        sent_bytes, spent_ms, has_heard = 0, [0.0, 0.0], False
        answer: Any = None
        while True:
            began = time.perf_counter()
            try:
                step = exchange.send(answer)
            except StopIteration as stop:
                spent_ms[has_heard] += (time.perf_counter() - began) * 1e3
                return Exchanged(stop.value[0], sent_bytes, *spent_ms)
            spent_ms[has_heard] += (time.perf_counter() - began) * 1e3
            request = step.request if isinstance(step, Start) else step
            if not isinstance(request, (Finish, PieceBytes)):
                sent_bytes += request.sent_bytes(self.num_ranks)
            answer = yield step
            has_heard |= not isinstance(step, (Start, PieceBytes))
