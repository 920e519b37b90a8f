"""Half precision on the wire, scaled so that it neither overflows nor underflows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..arrays import SET, Array, How, bits, loops, ops, put
from ._contract import Bucket, Compressor, Exchange
from ._two_sided import two_sided, two_sided_bytes

_TOP = 14  # a chunk's largest entry is brought to [2**14, 2**15]: float16 ends at 65504
_EXPONENT, _HALF_STEP = 0x7F800000, 0x1000  # of a float32: its exponent, and half of the last bit that float16 keeps


@dataclass(frozen=True)
class _ScaledHalf:
    """float16 entries in units of one power of two a chunk, so that scaling is exact in both directions."""

    block: int = 1

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """float16 entries, and the unit as one float32."""
        xp = ops(chunk)
        unit = xp.block_absmax(chunk.reshape(1, -1))
        exponent = bits(unit)
        exponent += _HALF_STEP  # an entry that float16 rounds up to the next power of two counts as that one
        exponent &= _EXPONENT
        unit = unit.clip(2.0**-112, 2.0**127) * 2.0**-_TOP  # a unit below 2**-126 would be denormal
        if fast := loops(chunk):
            half = xp.empty(chunk.shape, "float16")
            fast.to_half(chunk, half, 1 / float(unit[0]))
            return half, unit
        return xp.cast(chunk / unit, "float16"), unit

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """The entries in float32."""
        half, unit = payload
        if fast := loops(half, into):
            fast.from_half(half, float(unit[0]), into, how)
        else:
            put(into, ops(half).cast(half, "float32") * unit, how)

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """A slice of the entries, and their unit."""
        return payload[0][start:stop], payload[1]

    def payload_bytes(self, num_elements: int) -> int:
        """Two bytes an entry, four for the unit."""
        return 2 * num_elements + 4


@dataclass
class FP16(Compressor):
    """Round every entry to 11 bits (Micikevicius et al., "Mixed precision training", ICLR 2018).

    ``x -> float16(x / unit)``, where ``unit`` is a power of two that puts the chunk's largest magnitude next to ``2**15``. An entry
    down to ``2**-29`` of the largest keeps a relative error of ``2**-11``, a smaller one an absolute error of ``2**-40`` of the
    largest. Sums run in float32, so any number of ranks can be averaged.

    Wire: ``2 (P-1) (2 ceil(n/P) + 4)`` bytes.
    """

    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "two-sided"

    def exchange(self, bucket: Bucket) -> Exchange:
        """One exchange of scaled chunks, one gather of their scaled means."""
        return two_sided(bucket, _ScaledHalf())

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Half of the gradient, and a unit a chunk."""
        return two_sided_bytes(_ScaledHalf(), sum(map(math.prod, shapes)), num_ranks)

    def accepts(self, shape: Sequence[int]) -> bool:
        """Every tensor: rounding hurts none."""
        return True
