"""bfloat16 on the wire: the range of float32, with 8 bits of precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ._contract import Bucket, Compressor, Exchange
from ._two_sided import Cast, Codec, two_sided, two_sided_bytes


@dataclass
class BF16(Compressor):
    """Round every entry to 8 bits (Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019).

    ``x -> bfloat16(x)``: the upper half of a float32, to the nearest, ties to even. It needs no scale, and its relative error of
    ``2**-8`` is eight times that of fp16. Sums run in float32, so their precision does not fall with the number of ranks.

    Wire: ``2 (P-1) 2 ceil(n/P)`` bytes.
    """

    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "two-sided"

    def exchange(self, bucket: Bucket) -> Exchange:
        """One exchange of rounded chunks, one gather of their rounded means."""
        return two_sided(bucket, Cast("bfloat16"))

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Half of the gradient."""
        return two_sided_bytes(Cast("bfloat16"), sum(map(math.prod, shapes)), num_ranks)

    def accepts(self, shape: Sequence[int]) -> bool:
        """Every tensor: rounding hurts none."""
        return True

    @property
    def rounding(self) -> Codec:
        """Rounding is all."""
        return Cast("bfloat16")
