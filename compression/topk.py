"""Only the entries of largest magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..arrays import ops
from ..errors import CompressionError
from ._contract import AllGather, Bucket, Compressor, Exchange, Sparse


@dataclass
class TopK(Compressor):
    """Send the entries of largest magnitude (Aji & Heafield, EMNLP 2017; Stich et al., "Sparsified SGD with memory", NeurIPS 2018).

    ``k = max(1, round(density * n))`` over the whole bucket, so that layers compete for places; of equal entries, the first. The sent
    entries are exact, and the residual of error feedback is exactly the rest.

    Wire: ``(P-1) 8 k`` bytes, an int32 and a float32 an entry. They grow with the number of ranks: at density ``d`` it pays, against
    plain float32, below about ``1/d`` ranks.
    """

    biased: ClassVar[bool] = True
    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "allgather"

    density: float = 0.01  # share of the entries that is sent, in (0, 1]

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise CompressionError(f"density={self.density} is no share of the entries; expected a number in (0, 1]; try topk:density=0.01")

    def exchange(self, bucket: Bucket) -> Exchange:
        """One gather; every rank adds the entries of all ranks, in rank order, into one dense vector."""
        xp, mean = ops(bucket.flat), bucket.out
        index, values = xp.largest(bucket.flat, self._entries(bucket.flat.shape[0]))
        gathered = yield AllGather((index, values))
        mean[:] = 0
        for their_index, their_values in gathered:
            xp.add_at(mean, their_index, their_values)
        mean /= bucket.num_ranks
        return mean, Sparse(index)

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Eight bytes an entry to every other rank."""
        return (num_ranks - 1) * 8 * self._entries(sum(map(math.prod, shapes)))

    def _entries(self, size: int) -> int:
        return min(size, max(1, round(self.density * size)))
