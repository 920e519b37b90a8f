"""One bit an entry: its sign, with a magnitude for every block of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..arrays import SET, Array, How, bits, loops, ops, put
from ..errors import CompressionError
from ._contract import Bucket, Compressor, Exchange
from ._two_sided import two_sided, two_sided_bytes


@dataclass(frozen=True)
class _Signs:
    """Signs in units of the block's mean magnitude. Bit k of byte j of a block is the sign of its entry ``k * block/8 + j``."""

    block: int

    @property
    def grain(self) -> int:
        """A block."""
        return self.block

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """Eight signs a byte, and one float32 scale a block."""
        xp = ops(chunk)
        num_blocks, num_bytes = chunk.shape[0] // self.block, self.block // 8
        if fast := loops(chunk):
            packed, scale = xp.empty((chunk.shape[0] // 8,), "uint8"), xp.empty((num_blocks,), "float32")
            fast.to_signs(chunk, packed, scale, self.block)
            return packed, scale
        sums = abs(xp.cast(chunk, "float64")).reshape(num_blocks, self.block)
        for half in (self.block >> k for k in range(1, self.block.bit_length())):  # in this order everywhere: the same bits
            sums = sums[:, :half] + sums[:, half:]
        negative = xp.cast(bits(chunk) < 0, "uint8").reshape(num_blocks, 8, num_bytes)
        packed = xp.zeros((num_blocks, num_bytes), "uint8")
        for k in range(8):
            packed |= negative[:, k] << k
        return packed.reshape(-1), xp.cast(sums[:, 0] / self.block, "float32")

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """Sign times scale."""
        packed, scale = payload
        xp = ops(packed)
        if fast := loops(packed, scale, into):
            fast.from_signs(packed, scale, into, self.block, how)
            return
        signs = xp.empty((scale.shape[0], 8, self.block // 8), "float32")
        for k in range(8):
            signs[:, k] = (packed.reshape(-1, self.block // 8) >> k) & 1
        signs *= -2
        signs += 1
        put(into, (signs.reshape(-1, self.block) * scale[:, None]).reshape(-1), how)

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """Whole blocks of signs, and their scales."""
        return payload[0][start // 8 : stop // 8], payload[1][start // self.block : stop // self.block]

    def payload_bytes(self, num_elements: int) -> int:
        """One bit an entry, four bytes a block."""
        return num_elements // 8 + 4 * (num_elements // self.block)


@dataclass
class Sign(Compressor):
    """Send signs, and the mean magnitude of each block (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019).

    ``x -> mean|x| sign(x)``: the nearest vector of that form, so that error feedback converges on any gradient. The root of the mean
    square, which 1-bit Adam takes for a scale, is no such projection and can add more error than the gradient is long. A block of
    zeros stays zero; single zeros, which a sign cannot express, arrive as noise that error feedback takes back.

    Wire: ``2 (P-1) (1/8 + 4/block) n/P`` bytes, with ``n/P`` rounded up to whole blocks.
    """

    biased: ClassVar[bool] = True
    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "two-sided"

    block: int = 256  # entries that share a magnitude, a power of two

    def __post_init__(self) -> None:
        if self.block < 8 or self.block & (self.block - 1):
            raise CompressionError(f"block={self.block} is no length of a block; expected a power of two from 8; try sign:block=256")

    def exchange(self, bucket: Bucket) -> Exchange:
        """One exchange of signs, one gather of the signs of their means."""
        return two_sided(bucket, _Signs(self.block))

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """A thirty-second of the gradient, and the scales."""
        return two_sided_bytes(_Signs(self.block), sum(map(math.prod, shapes)), num_ranks)
