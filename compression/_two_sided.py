"""The compressed allreduce: exchange chunks, decode and sum in float32, encode the mean, gather.

Bytes: ``2 (P-1)/P`` of the encoded gradient, whatever the number of ranks; no payload is ever summed in its narrow type, so nothing
overflows. Known as the two-sided or class C scheme (Tang et al., "1-bit Adam", ICML 2021, section 4; ZeRO++, 2023). Two ranks swap the
whole instead, which is as many bytes: the mean is not rounded a second time, and nobody waits for a second message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ..arrays import ADD, SET, SUBTRACT, Array, How, bits, dtype_name, loops, ops, put
from ._contract import AllGather, AllToAll, Bucket, Exchange, Finish, PieceBytes, Start

Op: TypeAlias = Literal["sum", "min", "max", "product"]


class Codec(Protocol):
    """How a chunk is written on the wire."""

    @property
    def block(self) -> int:
        """Chunk lengths are multiples of this many elements."""

    @property
    def grain(self) -> int:
        """A chunk may be encoded in pieces that begin at multiples of this many elements: the payload is the same."""

    def encode(self, chunk: Array) -> tuple[Array, ...]:
        """The chunk, which is contiguous, as payload arrays, of shapes that depend on its length alone."""

    def decode(self, payload: tuple[Array, ...], into: Array, how: How = SET) -> None:
        """Write the payload into a float32 vector, or add it there, or subtract it; as many entries as the vector has, if not all."""

    def part(self, payload: tuple[Array, ...], start: int, stop: int) -> tuple[Array, ...]:
        """The payload of the entries from ``start`` to ``stop``, both on borders of blocks or at the end; all from one grain, or whole grains."""

    def payload_bytes(self, num_elements: int) -> int:
        """Size of the payload of a chunk."""


@dataclass(frozen=True)
class Cast:
    """A codec that is only another floating type."""

    dtype: str
    block: int = 1
    grain: int = 1

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
    """What a rank sent of one piece of every chunk, less what was lost when it encoded the mean of the piece it is responsible for.

    That loss is everybody's, and only this rank knows it. Counting it, times the number of ranks, as not sent lets error feedback
    deliver it later: the mean over the ranks of what they sent is exactly what arrived, and there is no second residual to keep.
    """

    codec: Codec
    parts: Sequence[tuple[Array, ...]]
    places: Sequence[slice]
    """Of the parts, in the bucket; those at its end may be shorter than what was sent."""
    rank: int
    mean: Array  # of this rank's part, in float32
    encoded_mean: tuple[Array, ...]

    def decode(self, into: Array, how: How) -> None:
        """Write, add or subtract it where it belongs in the bucket."""
        for rank, (payload, place) in enumerate(zip(self.parts, self.places, strict=True)):
            if rank == self.rank:
                put(into[place], self._own(), how)
            else:
                self.codec.decode(payload, into[place], how)

    def _own(self) -> Array:
        lost = ops(self.mean).empty(self.mean.shape, "float32")
        lost[:] = self.mean
        self.codec.decode(self.encoded_mean, lost, SUBTRACT)
        lost *= -len(self.parts)
        self.codec.decode(self.parts[self.rank], lost, ADD)
        return lost


@dataclass(frozen=True)
class Sum:
    """What a rank sent in all its pieces."""

    pieces: Sequence[Encoded]
    length: int

    def subtract_from(self, given: Array) -> None:
        """``given -= vector()``, in place, piece by piece."""
        for piece in self.pieces:
            piece.decode(given, SUBTRACT)

    def vector(self) -> Array:
        """The same as one vector."""
        vector = ops(self.pieces[0].mean).empty((self.length,), "float32")
        for piece in self.pieces:
            piece.decode(vector, SET)
        return vector


def chunk_elements(num_elements: int, num_ranks: int, block: int) -> int:
    """Elements a rank is responsible for: an equal share, rounded up to whole blocks, of which there is at least one."""
    blocks = max(1, -(-num_elements // block))
    return -(-blocks // num_ranks) * block


def two_sided(bucket: Bucket, codec: Codec, op: Op = "sum", factor: float | None = None) -> Exchange:
    """Mean of ``bucket.flat`` over the ranks, through ``codec`` in both directions.

    With ``factor``, the ranks are combined by ``op`` and the result is multiplied by it instead of being averaged.
    """
    factor = 1 / bucket.num_ranks if factor is None else factor
    return (yield from (_swapped if bucket.num_ranks == 2 else _shared_out)(bucket, codec, op, factor))


def _shared_out(bucket: Bucket, codec: Codec, op: Op, factor: float) -> Exchange:
    """Each rank combines a chunk and sends the result to all. In pieces of every chunk, so that wire and codec work at the same time."""
    flat, n, ranks = bucket.flat, bucket.flat.shape[0], bucket.num_ranks
    share = chunk_elements(n, ranks, codec.block)
    cuts = _pieces(share, codec, (yield PieceBytes()))
    places = [[slice(min(r * share + c.start, n), min(r * share + c.stop, n)) for r in range(ranks)] for c in cuts]
    parts, under_way = [], []
    for cut, place in zip(cuts, places, strict=True):
        parts.append([codec.encode(padded(flat[p], cut.stop - cut.start)) for p in place])
        under_way.append((yield Start(AllToAll(parts[-1]))))
    sent, results = [], []
    for cut, place, part, token in zip(cuts, places, parts, under_way, strict=True):
        total = ops(flat).empty((cut.stop - cut.start,), "float32")
        _combine((yield Finish(token)), codec, op, factor, total)
        encoded = codec.encode(total)
        results.append((yield Start(AllGather(encoded))))
        sent.append(Encoded(codec, part, place, bucket.rank, total, encoded))
    for place, token in zip(places, results, strict=True):  # only now: the result may go where the bucket lies
        for p, payload in zip(place, (yield Finish(token)), strict=True):
            codec.decode(payload, bucket.out[p])
    return bucket.out, Sum(sent, n)


def _swapped(bucket: Bucket, codec: Codec, op: Op, factor: float) -> Exchange:
    """Two ranks send each other the whole, and both combine the same two payloads. In pieces, one is on its way while the next is encoded."""
    flat, out = bucket.flat, bucket.out
    total = out if dtype_name(out) == "float32" else ops(flat).empty(out.shape, "float32")
    pieces = _pieces(flat.shape[0], codec, (yield PieceBytes()))
    own, under_way = [], []
    for p in pieces:
        own.append(codec.encode(padded(flat[p], chunk_elements(p.stop - p.start, 1, codec.block))))
        under_way.append((yield Start(AllGather(own[-1]))))
    for p, token in zip(pieces, under_way, strict=True):  # only now: the result may go where the bucket lies
        _combine((yield Finish(token)), codec, op, factor, total[p])
    if total is not out:
        out[...] = ops(flat).cast(total, dtype_name(out))
    sent = [Decoded(codec, payload, p.stop - p.start) for payload, p in zip(own, pieces, strict=True)]
    return out, sent[0] if len(sent) == 1 else InPieces(sent, pieces)


def _pieces(num_elements: int, codec: Codec, piece_bytes: int) -> list[slice]:
    """Equal cuts of a chunk, on borders of grains, whose payloads have about so many bytes or more."""
    number = max(1, codec.payload_bytes(num_elements) // piece_bytes) if piece_bytes else 1
    step = chunk_elements(num_elements, number, codec.grain)
    return [slice(start, min(start + step, num_elements)) for start in range(0, max(1, num_elements), step)]


def _combine(payloads: Sequence[tuple[Array, ...]], codec: Codec, op: Op, factor: float, total: Array) -> None:
    """Decode what the ranks sent, and combine it into a float32 vector in their order: the same bits every time."""
    for start, stop in _tiles(total, codec):
        into = total[start:stop]
        codec.decode(codec.part(payloads[0], start, stop), into)
        for payload in payloads[1:]:
            if op == "sum":
                codec.decode(codec.part(payload, start, stop), into, ADD)
            else:
                other = ops(total).empty(into.shape, "float32")
                codec.decode(codec.part(payload, start, stop), other)
                into[...] = ops(total).combine(op, into, other)
        if factor != 1.0:
            into *= factor


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


@dataclass(frozen=True)
class InPieces:
    """What a rank sent piece by piece."""

    sent: Sequence[Decoded]
    pieces: Sequence[slice]

    def subtract_from(self, given: Array) -> None:
        """``given -= vector()``, in place."""
        for sent, piece in zip(self.sent, self.pieces, strict=True):
            sent.subtract_from(given[piece])

    def fold(self, given: Array, more: Array) -> None:
        """``given = (given - vector()) + more``, in place."""
        for sent, piece in zip(self.sent, self.pieces, strict=True):
            sent.fold(given[piece], more[piece])

    def vector(self) -> Array:
        """The same as one vector."""
        return ops(self.sent[0].payload[0]).concat([sent.vector() for sent in self.sent])


def _tiles(vector: Array, codec: Codec) -> Iterator[tuple[int, int]]:
    """Steps through a vector, on borders of blocks, after which it is still in the cache."""
    n, step = vector.shape[0], max(1, ops(vector).tile // codec.block) * codec.block
    return ((start, start + step) for start in range(0, n, step))


def two_sided_bytes(codec: Codec, num_elements: int, num_ranks: int) -> int:
    """Bytes one rank sends in :func:`two_sided`."""
    if num_ranks == 2:
        return codec.payload_bytes(chunk_elements(num_elements, 1, codec.block))
    return 2 * (num_ranks - 1) * codec.payload_bytes(chunk_elements(num_elements, num_ranks, codec.block))


def padded(chunk: Array, length: int) -> Array:
    """The chunk with zeros behind it, so many entries long."""
    missing = length - chunk.shape[0]
    if not missing:
        return chunk
    xp = ops(chunk)
    return xp.concat([chunk, xp.zeros((missing,), dtype_name(chunk))])
