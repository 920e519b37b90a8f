"""Half precision on the wire, scaled so that it neither overflows nor underflows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..arrays import SET, Array, How, bits, loops, ops, put
from ._contract import Bucket, Compressor, Exchange
from ._two_sided import Codec, two_sided, two_sided_bytes

_TOP = 14  # a chunk's largest entry is brought to [2**14, 2**15]: float16 ends at 65504
_EXPONENT, _HALF_STEP = 0x7F800000, 0x1000  # of a float32: its exponent, and half of the last bit that float16 keeps


@dataclass(frozen=True)
class _ScaledHalf:
    """float16 entries in units of one power of two for each ``grain`` of them, so that scaling is exact in both directions."""

    block: int = 1
    grain: int = 1 << 16  # 256 KiB: still in the cache when its largest entry is known

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """float16 entries, and the units as float32."""
        xp, n = ops(chunk), chunk.shape[0]
        half, units = xp.empty((n,), "float16"), xp.empty((-(-n // self.grain),), "float32")
        for number, start in enumerate(range(0, n, self.grain)):
            part = slice(start, start + self.grain)
            units[number] = self._encode(chunk[part], half[part])
        return half, units

    def _encode(self, chunk: Array, half: Array) -> Array:
        """Write a grain; its unit."""
        xp = ops(chunk)
        unit = xp.block_absmax(chunk.reshape(1, -1))
        exponent = bits(unit)
        exponent += _HALF_STEP  # an entry that float16 rounds up to the next power of two counts as that one
        exponent &= _EXPONENT
        unit = unit.clip(2.0**-112, 2.0**127) * 2.0**-_TOP  # a unit below 2**-126 would be denormal
        if fast := loops(chunk, half):
            fast.to_half(chunk, half, 1 / float(unit[0]))
        else:
            half[:] = xp.cast(chunk / unit, "float16")
        return unit[0]

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """The entries in float32."""
        half, units = payload
        for number, start in enumerate(range(0, into.shape[0], self.grain)):
            part, unit = slice(start, min(start + self.grain, into.shape[0])), units[number]
            if fast := loops(half, into):
                fast.from_half(half[part], float(unit), into[part], how)
            else:
                put(into[part], ops(half).cast(half[part], "float32") * unit, how)

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """A slice of the entries, and their units."""
        return payload[0][start:stop], payload[1][start // self.grain : -(-stop // self.grain)]

    def payload_bytes(self, num_elements: int) -> int:
        """Two bytes an entry, four a unit."""
        return 2 * num_elements + 4 * -(-num_elements // self.grain)


@dataclass
class FP16(Compressor):
    """Round every entry to 11 bits (Micikevicius et al., "Mixed precision training", ICLR 2018).

    ``x -> float16(x / unit)``, where ``unit`` is a power of two that puts the largest magnitude of 65,536 entries next to ``2**15``. An
    entry down to ``2**-29`` of the largest keeps a relative error of ``2**-11``, a smaller one an absolute error of ``2**-40`` of the
    largest. Sums run in float32, so any number of ranks can be averaged.

    Wire: ``2 (P-1) (2 c + 4 ceil(c / 65536))`` bytes, with chunks of ``c = ceil(n/P)`` entries.
    """

    collective: ClassVar[Literal["allreduce", "two-sided", "allgather"]] = "two-sided"

    def exchange(self, bucket: Bucket) -> Exchange:
        """One exchange of scaled chunks, one gather of their scaled means."""
        return two_sided(bucket, _ScaledHalf())

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Half of the gradient, and the units."""
        return two_sided_bytes(_ScaledHalf(), sum(map(math.prod, shapes)), num_ranks)

    def accepts(self, shape: Sequence[int]) -> bool:
        """Every tensor: rounding hurts none."""
        return True

    @property
    def rounding(self) -> Codec:
        """Rounding is all."""
        return _ScaledHalf()
