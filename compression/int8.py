"""Eight bits an entry, with a scale for every block of entries."""

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
class Int8(Compressor):
    """Quantise to 255 evenly spaced levels a block (Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022).

    ``q = rint(x / s)`` with ``s = max|x| / 127`` over the block, ``s`` kept to 17 bits. A scale a block, not a tensor or a bucket, keeps
    a layer of large gradients from erasing its neighbours. Entries under half a step of their block become zero, every time: hence
    error feedback.

    Wire: ``2 (P-1) (1 + 4/block) n/P`` bytes, with ``n/P`` rounded up to whole blocks.
    """

    biased: ClassVar[bool] = True
    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "two-sided"

    block: int = 256  # entries that share a scale

    def __post_init__(self) -> None:
        if self.block < 8:
            raise CompressionError(f"block={self.block} is too short; expected at least 8 entries to share a scale of 4 bytes; try int8:block=256")

    def exchange(self, bucket: Bucket) -> Exchange:
        """One exchange of quantised chunks, one gather of their quantised means."""
        return two_sided(bucket, Levels(self.block, bits=8))

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """A quarter of the gradient, and the scales."""
        return two_sided_bytes(Levels(self.block, bits=8), sum(map(math.prod, shapes)), num_ranks)
