"""The compressed allreduce: exchange chunks, decode and sum in float32, encode the mean, gather.

Bytes: ``2 (P-1)/P`` of the encoded gradient, whatever the number of ranks; no payload is ever summed in its narrow type, so nothing
overflows. Known as the two-sided or class C scheme (Tang et al., "1-bit Adam", ICML 2021, section 4; ZeRO++, 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ..arrays import Array, dtype_name, ops
from ._contract import AllGather, AllToAll, Bucket, Dense, Exchange, concatenated


class Codec(Protocol):
    """How a chunk is written on the wire."""

    @property
    def block(self) -> int:
        """Chunk lengths are multiples of this many elements."""

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """The chunk as payload arrays, of shapes that depend on its length alone."""

    def decode(self, payload: tuple[Array, ...]) -> Array:
        """The payload as a new float32 vector."""

    def payload_bytes(self, num_elements: int) -> int:
        """Size of the payload of a chunk."""


@dataclass(frozen=True)
class Cast:
    """A codec that is only another floating type."""

    dtype: str
    block: int = 1

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """The chunk in ``dtype``."""
        return (ops(chunk).cast(chunk, self.dtype),)

    def decode(self, payload: tuple[Array, ...]) -> Array:
        """The payload in float32."""
        return ops(payload[0]).cast(payload[0], "float32")

    def payload_bytes(self, num_elements: int) -> int:
        """Two bytes an element for the 16-bit types, one for the 8-bit ones."""
        return num_elements * (1 if "8" in self.dtype else 2)


def chunk_elements(num_elements: int, num_ranks: int, block: int) -> int:
    """Elements a rank is responsible for: an equal share, rounded up to whole blocks, of which there is at least one."""
    blocks = max(1, -(-num_elements // block))
    return -(-blocks // num_ranks) * block


def two_sided(bucket: Bucket, codec: Codec, op: Literal["sum", "min", "max", "product"] = "sum", factor: float | None = None) -> Exchange:
    """Mean of ``bucket.flat`` over the ranks, through ``codec`` in both directions.

    With ``factor``, the ranks are combined by ``op`` and the result is multiplied by it instead of being averaged.
    """
    xp, flat, ranks = ops(bucket.flat), bucket.flat, bucket.num_ranks
    n = flat.shape[0]
    share = chunk_elements(n, ranks, codec.block)
    encoded = [codec.encode(_padded(flat[r * share : (r + 1) * share], share)) for r in range(ranks)]
    received = yield AllToAll(encoded)
    total = codec.decode(received[0])
    for payload in received[1:]:  # in the order of the ranks: the same bits every time
        total = xp.combine(op, total, codec.decode(payload))
    if factor is None:
        total /= ranks
    elif factor != 1.0:
        total *= factor
    gathered = yield AllGather(codec.encode(total))
    for r, payload in enumerate(gathered):
        part = bucket.out[r * share : (r + 1) * share]
        part[:] = xp.cast(codec.decode(payload)[: part.shape[0]], dtype_name(bucket.out))
    return bucket.out, Dense(lambda: concatenated([codec.decode(p) for p in encoded])[:n])


def two_sided_bytes(codec: Codec, num_elements: int, num_ranks: int) -> int:
    """Bytes one rank sends in :func:`two_sided`."""
    return 2 * (num_ranks - 1) * codec.payload_bytes(chunk_elements(num_elements, num_ranks, codec.block))


def _padded(chunk: Array, length: int) -> Array:
    missing = length - chunk.shape[0]
    if not missing:
        return chunk
    xp = ops(chunk)
    return xp.concat([chunk, xp.zeros((missing,), dtype_name(chunk))])
