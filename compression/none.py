"""No compression: the exact mean, the baseline of every comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..arrays import NARROW_FLOATS, dtype_name
from ._contract import AllReduce, Bucket, Compressor, Dense, Exchange
from ._two_sided import Cast, two_sided


@dataclass
class NoCompression(Compressor):
    """Send every entry in its own type; sum in float32 at least.

    float32 and wider take one allreduce. 16-bit and narrower tensors are never summed in their own type, which would overflow and lose
    bits with every rank: they are exchanged, summed in float32 and gathered again, at the same number of bytes.
    """

    any_dtype: ClassVar[bool] = True
    depends_on_bucket: ClassVar[bool] = False

    def exchange(self, bucket: Bucket) -> Exchange:
        """One allreduce, or for narrow types one exchange and one gather."""
        dtype = dtype_name(bucket.flat)
        if dtype in NARROW_FLOATS:
            return (yield from two_sided(bucket, Cast(dtype)))
        mean = yield AllReduce(bucket.flat, factor=1 / bucket.num_ranks)
        return mean, Dense(lambda: bucket.flat)

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """``2 (P-1)/P`` of the gradient."""
        return round(2 * (num_ranks - 1) / num_ranks * 4 * sum(map(math.prod, shapes)))

    def accepts(self, shape: Sequence[int]) -> bool:
        """Everything travels dense anyway."""
        return True
