"""Evenly spaced levels in units of one scale a block: the codec of int8 and int4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..arrays import SET, Array, How, bits, loops, ops, put

_SCALE_BITS = -128  # clears the last 7 bits of a scale: its products with 7-bit levels are then exact in float32
_MORE = 1 + 2.0**-20  # a little too much, so that the scale of largest level * s is s again after it is truncated


@dataclass(frozen=True)
class Levels:
    """``q = rint(x / s)`` in ``2**bits - 1`` levels around zero, where the block's largest magnitude is the highest level.

    Levels of 4 bits lie two in a byte, increased by 8: entry ``i`` of a block in the lower half, entry ``i + block/2`` in the upper.
    """

    block: int
    bits: Literal[8, 4]

    @property
    def grain(self) -> int:
        """A block."""
        return self.block

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """Levels, a byte for one or two, and one float32 scale a block."""
        xp = ops(chunk)
        if fast := loops(chunk):
            packed, scale = xp.empty((chunk.shape[0] * self.bits // 8,), self._dtype), xp.empty((chunk.shape[0] // self.block,), "float32")
            fast.to_levels(chunk, packed, scale, self.block, self.bits, self._per_level, _SCALE_BITS)
            return packed, scale
        blocks = chunk.reshape(-1, self.block)
        scale = (xp.block_absmax(blocks) * self._per_level).clip(2.0**-126, None)  # a denormal scale would have too few bits, 0 none
        kept = bits(scale)
        kept &= _SCALE_BITS
        levels = xp.rint(blocks / scale[:, None])
        if self.bits == 4:
            halves = xp.cast(levels + 8, "uint8").reshape(-1, 2, self.block // 2)
            return (halves[:, 0] | halves[:, 1] << 4).reshape(-1), scale
        return xp.cast(levels.reshape(-1), "int8"), scale

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """Level times scale."""
        packed, scale = payload
        xp = ops(packed)
        if fast := loops(packed, scale, into):
            fast.from_levels(packed, scale, into, self.block, self.bits, how)
            return
        if self.bits == 4:
            blocks = xp.empty((scale.shape[0], 2, self.block // 2), "float32")
            blocks[:, 0] = (packed & 15).reshape(-1, self.block // 2)
            blocks[:, 1] = (packed >> 4).reshape(-1, self.block // 2)
            blocks -= 8
        else:
            blocks = xp.cast(packed, "float32")
        blocks = blocks.reshape(-1, self.block)
        blocks *= scale[:, None]
        put(into, blocks.reshape(-1), how)

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """Whole blocks of levels, and their scales."""
        return payload[0][start * self.bits // 8 : stop * self.bits // 8], payload[1][start // self.block : stop // self.block]

    def payload_bytes(self, num_elements: int) -> int:
        """``bits / 8`` bytes an entry, four a block."""
        return num_elements * self.bits // 8 + 4 * (num_elements // self.block)

    @property
    def _dtype(self) -> str:
        return "int8" if self.bits == 8 else "uint8"

    @property
    def _per_level(self) -> float:
        return _MORE / ((1 << self.bits - 1) - 1)
