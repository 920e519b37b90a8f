"""Four bits an entry, with a scale for every block of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import CompressionError
from ._contract import Bucket, Compressor, Exchange
from ._levels import Levels
from ._two_sided import two_sided, two_sided_bytes


@dataclass
class Int4(Compressor):
    """Quantise to 15 evenly spaced levels a block, with error feedback (Xie et al., "LoCo: Low-bit communication adaptor", 2024).

    ``q = rint(x / s)`` with ``s = max|x| / 7`` over the block, two entries a byte. Blocks are shorter than those of int8, because one
    large entry takes the levels of all others in its block. About 1 % of the gradient's square waits in the residual, which makes error
    feedback a necessity.

    Wire: ``2 (P-1) (1/2 + 4/block) n/P`` bytes, with ``n/P`` rounded up to whole blocks.
    """

    biased: ClassVar[bool] = True
    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "two-sided"

    block: int = 128  # entries that share a scale

    def __post_init__(self) -> None:
        if self.block < 8 or self.block % 2:
            raise CompressionError(f"block={self.block} is no length of a block; expected an even number from 8; try int4:block=128")

    def exchange(self, bucket: Bucket) -> Exchange:
        """One exchange of quantised chunks, one gather of their quantised means."""
        return two_sided(bucket, Levels(self.block, bits=4))

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """An eighth of the gradient, and the scales."""
        return two_sided_bytes(Levels(self.block, bits=4), sum(map(math.prod, shapes)), num_ranks)
