"""The compressed allreduce: exchange chunks, decode and sum in float32, encode the mean, gather.

Bytes: ``2 (P-1)/P`` of the encoded gradient, whatever the number of ranks; no payload is ever summed in its narrow type, so nothing
overflows. Known as the two-sided or class C scheme (Tang et al., "1-bit Adam", ICML 2021, section 4; ZeRO++, 2023). Two ranks swap the
whole instead, which is as many bytes: the mean is not rounded a second time, and nobody waits for a second message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..arrays import ADD, SET, SUBTRACT, Array, How, bits, dtype_name, loops, ops, put
from ._contract import AllGather, AllToAll, Bucket, Exchange


class Codec(Protocol):
    """How a chunk is written on the wire."""

    @property
    def block(self) -> int:
        """Chunk lengths are multiples of this many elements."""

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """The chunk, which is contiguous, as payload arrays, of shapes that depend on its length alone."""

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """Write the payload into a float32 vector, or add it there, or subtract it; as many entries as the vector has, if not all."""

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """The payload of the entries from ``start`` to ``stop``, both on borders of blocks or at the end."""

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

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """The payload in float32, or unchanged where its own type is wanted."""
        narrow = payload[0][: into.shape[0]]
        if dtype_name(into) == self.dtype:
            put(into, narrow, how)
        elif self.dtype == "bfloat16" and (fast := loops(narrow, into)):
            fast.from_bfloat(bits(narrow), into, how)
        elif self.dtype == "float16" and (fast := loops(narrow, into)):
            fast.from_half(narrow, 1.0, into, how)
        else:
            put(into, ops(narrow).cast(narrow, "float32"), how)

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """A slice of it."""
        return (payload[0][start:stop],)

    def payload_bytes(self, num_elements: int) -> int:
        """Two bytes an element for the 16-bit types, one for the 8-bit ones."""
        return num_elements * (1 if "8" in self.dtype else 2)


@dataclass(frozen=True)
class Encoded:
    """What a rank sent in :func:`two_sided`: its chunks, less what was lost when it encoded the mean of the chunk it is responsible for.

    That loss is everybody's, and only this rank knows it. Counting it, times the number of ranks, as not sent lets error feedback
    deliver it later: the mean over the ranks of what they sent is exactly what arrived, and there is no second residual to keep.
    """

    codec: Codec
    chunks: Sequence[tuple[Array, ...]]
    rank: int
    mean: Array  # of this rank's chunk, in float32
    encoded_mean: tuple[Array, ...]
    length: int

    def subtract_from(self, given: Array) -> None:
        """``given -= vector()``, in place, chunk by chunk."""
        self._decode(given, SUBTRACT)

    def vector(self) -> Array:
        """The same as one vector."""
        vector = ops(self.mean).empty((self.length,), "float32")
        self._decode(vector, SET)
        return vector

    def _decode(self, into: Array, how: How) -> None:
        share = self.mean.shape[0]
        for rank, payload in enumerate(self.chunks):
            part = into[rank * share : (rank + 1) * share]
            if rank == self.rank:
                put(part, self._own(), how)
            else:
                self.codec.decode(payload, part, how)

    def _own(self) -> Array:
        lost = ops(self.mean).empty(self.mean.shape, "float32")
        lost[:] = self.mean
        self.codec.decode(self.encoded_mean, lost, SUBTRACT)
        lost *= -len(self.chunks)
        self.codec.decode(self.chunks[self.rank], lost, ADD)
        return lost


def chunk_elements(num_elements: int, num_ranks: int, block: int) -> int:
    """Elements a rank is responsible for: an equal share, rounded up to whole blocks, of which there is at least one."""
    blocks = max(1, -(-num_elements // block))
    return -(-blocks // num_ranks) * block


def two_sided(bucket: Bucket, codec: Codec, op: Literal["sum", "min", "max", "product"] = "sum", factor: float | None = None) -> Exchange:
    """Mean of ``bucket.flat`` over the ranks, through ``codec`` in both directions.

    With ``factor``, the ranks are combined by ``op`` and the result is multiplied by it instead of being averaged.
    """
    xp, flat, ranks = ops(bucket.flat), bucket.flat, bucket.num_ranks
    factor = 1 / ranks if factor is None else factor
    if ranks == 2:
        return (yield from _swapped(bucket, codec, op, factor))
    n = flat.shape[0]
    share = chunk_elements(n, ranks, codec.block)
    encoded = [codec.encode(_padded(flat[r * share : (r + 1) * share], share)) for r in range(ranks)]
    received = yield AllToAll(encoded)
    total = xp.empty((share,), "float32")
    codec.decode(received[0], total)
    for payload in received[1:]:  # in the order of the ranks: the same bits every time
        if op == "sum":
            codec.decode(payload, total, ADD)
        else:
            other = xp.empty((share,), "float32")
            codec.decode(payload, other)
            total = xp.combine(op, total, other)
    if factor != 1.0:
        total *= factor
    encoded_mean = codec.encode(total)
    gathered = yield AllGather(encoded_mean)
    for r, payload in enumerate(gathered):
        codec.decode(payload, bucket.out[r * share : (r + 1) * share])
    return bucket.out, Encoded(codec, encoded, bucket.rank, total, encoded_mean, n)


def _swapped(bucket: Bucket, codec: Codec, op: Literal["sum", "min", "max", "product"], factor: float) -> Exchange:
    """Two ranks send each other the whole, and both combine the same two payloads."""
    xp, out = ops(bucket.flat), bucket.out
    total = out if dtype_name(out) == "float32" else xp.empty(out.shape, "float32")
    own = codec.encode(_padded(bucket.flat, chunk_elements(bucket.flat.shape[0], 1, codec.block)))
    first, second = yield AllGather(own)
    for start, stop in _tiles(total, codec):
        into = total[start:stop]
        codec.decode(codec.part(first, start, stop), into)
        if op == "sum":
            codec.decode(codec.part(second, start, stop), into, ADD)
        else:
            other = xp.empty(into.shape, "float32")
            codec.decode(codec.part(second, start, stop), other)
            xp.combine(op, into, other)
        if factor != 1.0:
            into *= factor
    if total is not out:
        out[...] = xp.cast(total, dtype_name(out))
    return out, Decoded(codec, own, bucket.flat.shape[0])


@dataclass(frozen=True)
class Decoded:
    """What a rank sent when it was decoded as it is."""

    codec: Codec
    payload: tuple[Array, ...]
    length: int

    def subtract_from(self, given: Array) -> None:
        """``given -= vector()``, in place."""
        self.codec.decode(self.payload, given, SUBTRACT)

    def fold(self, given: Array, more: Array) -> None:
        """``given = (given - vector()) + more``, in place."""
        for start, stop in _tiles(given, self.codec):
            into = given[start:stop]
            self.codec.decode(self.codec.part(self.payload, start, stop), into, SUBTRACT)
            into += more[start:stop]

    def vector(self) -> Array:
        """The same as one vector."""
        vector = ops(self.payload[0]).empty((self.length,), "float32")
        self.codec.decode(self.payload, vector, SET)
        return vector


def _tiles(vector: Array, codec: Codec) -> Iterator[tuple[int, int]]:
    """Steps through a vector, on borders of blocks, after which it is still in the cache."""
    n, step = vector.shape[0], max(1, ops(vector).tile // codec.block) * codec.block
    return ((start, start + step) for start in range(0, n, step))


def two_sided_bytes(codec: Codec, num_elements: int, num_ranks: int) -> int:
    """Bytes one rank sends in :func:`two_sided`."""
    if num_ranks == 2:
        return codec.payload_bytes(chunk_elements(num_elements, 1, codec.block))
    return 2 * (num_ranks - 1) * codec.payload_bytes(chunk_elements(num_elements, num_ranks, codec.block))


def _padded(chunk: Array, length: int) -> Array:
    missing = length - chunk.shape[0]
    if not missing:
        return chunk
    xp = ops(chunk)
    return xp.concat([chunk, xp.zeros((missing,), dtype_name(chunk))])
