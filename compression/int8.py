"""Eight bits an entry, with a scale for every block of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..arrays import Array, bits, ops
from ..errors import CompressionError
from ._contract import Bucket, Compressor, Exchange
from ._two_sided import two_sided, two_sided_bytes

_LEVELS = 127
_PER_LEVEL = (1 + 2.0**-20) / _LEVELS  # a little too much, so that the scale of 127 * s is s again after it is truncated
_SCALE_BITS = -128  # clears the last 7 bits of a scale: its products with 7-bit levels are then exact in float32


@dataclass(frozen=True)
class _Levels:
    """int8 levels in units of one scale a block."""

    block: int

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """int8 levels, and one float32 scale a block."""
        xp = ops(chunk)
        blocks = chunk.reshape(-1, self.block)
        scale = (xp.block_absmax(blocks) * _PER_LEVEL).clip(2.0**-126, None)  # a denormal scale would have too few bits, 0 none
        kept = bits(scale)
        kept &= _SCALE_BITS
        return xp.cast(xp.rint(blocks / scale[:, None]).reshape(-1), "int8"), scale

    def decode(self, payload: tuple[Array, ...]) -> Array:
        """Level times scale."""
        levels, scale = payload
        blocks = ops(levels).cast(levels, "float32").reshape(-1, self.block)
        blocks *= scale[:, None]
        return blocks.reshape(-1)

    def payload_bytes(self, num_elements: int) -> int:
        """One byte an entry, four a block."""
        return num_elements + 4 * (num_elements // self.block)


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
        return two_sided(bucket, _Levels(self.block))

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """A quarter of the gradient, and the scales."""
        return two_sided_bytes(_Levels(self.block), sum(map(math.prod, shapes)), num_ranks)
