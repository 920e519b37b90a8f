"""Combine arrays over the ranks: tensors, groups, and buckets of gradients, compressed or not."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..arrays import NARROW_FLOATS, Array, dtype_name, is_floating, ops
from ..compression import AllReduce, Bucket, Compressor, Exchange, Finish, PieceBytes, Sent, Start, Step
from ..compression._two_sided import Cast, Codec, two_sided
from ..negotiation import Signature, Vote
from ..submissions import Program
from ..transports import Across, NodeReduce, NodeShare
from ._adasum import adasum
from ._base import Operation, check_arrays, deal_out
from ._reduction import COMBINE, Adasum, Average, ReduceOp, Sum, check_compressible, divide, scale


@dataclass(frozen=True)
class Carrier:
    """Who carries a bucket across the nodes: on each the rank ``local_rank``; and how this rank stands to that."""

    local_rank: int
    is_here: bool
    node: int
    num_nodes: int


@dataclass
class AllReduceOperation(Operation):
    """Combine arrays over the ranks, in place: one tensor, a group that travels together, or a bucket of gradients.

    ``layout`` names and shapes the parts of a bucket, whose ``arrays`` is one flat vector; elsewhere it follows from the arrays.
    ``missing`` names the parts for which this rank has no gradient (zeros stand in); the result says which were missing everywhere.
    ``resident``: the vector is the transport's own, the same one on every rank. ``all_finite``: whether it is, when somebody has looked.
    ``carrier``: the ranks of a node are to be summed first, and only the sum is compressed.
    """

    name: str
    arrays: list[Array]
    op: ReduceOp
    num_ranks: int
    rank: int
    prescale: float = 1.0
    postscale: float = 1.0
    compressor: Compressor | None = None
    layout: Sequence[tuple[str, tuple[int, ...]]] = ()
    missing: Collection[str] = ()
    resident: bool = False
    all_finite: bool | None = None
    carrier: Carrier | None = None
    signature: bytes = field(init=False)
    nbytes: int = field(init=False)
    kind: ClassVar[str] = "allreduce"

    def __post_init__(self) -> None:
        if self.compressor is not None:
            check_compressible(repr(self.name), self.compressor, self.op)
        check_arrays(self.name, self.arrays)
        shapes = self.layout or [(self.name, tuple(a.shape)) for a in self.arrays]
        self.nbytes = sum(int(a.nbytes) for a in self.arrays)
        self.signature = Signature(
            name=self.name,
            kind=self.kind,
            tensors=tuple(n for n, _ in self.layout),
            shapes=tuple(s for _, s in shapes),
            dtypes=tuple(dtype_name(a) for a in self.arrays),
            op=self.op.name,
            prescale=self.prescale,
            postscale=self.postscale,
            compression=self._how_compressed(),
        ).encode()

    def _how_compressed(self) -> str:
        if self.compressor is None:
            return "none"
        return self.compressor.signature + (f", from local rank {self.carrier.local_rank}" if self.carrier else "")

    def vote(self) -> Vote:
        """Only what is going to be encoded must be finite: plain sums carry NaN and infinity by themselves."""
        encodes = self.compressor is not None and not self.compressor.any_dtype
        known = self.all_finite
        finite = not encodes or (all(ops(a).all_finite(a) for a in self.arrays) if known is None else known)
        return (Vote.FINITE if finite else Vote.NONE) | (Vote.NONE if self.missing else Vote.COMPLETE)

    def fusion_key(self) -> Hashable | None:
        """Plain reductions of one kind run together."""
        if self.compressor is not None or self.layout:
            return None
        return (self.op, self.prescale, self.postscale)

    def program(self, vote: Vote) -> Program:
        """Reduce; when some rank holds NaN or infinity, every rank gets NaN and no compressor hears of it.

        Returns the names of the parts that no rank has.
        """
        absent: frozenset[str] = frozenset()
        if Vote.COMPLETE not in vote:
            present = np.array([name not in self.missing for name, _ in self.layout], np.uint8)
            yield AllReduce(present, "max")
            absent = frozenset(name for (name, _), found in zip(self.layout, present, strict=True) if not found)
        for part in self._parts([self], finite=Vote.FINITE in vote):
            yield from part
        return absent

    def fused(self, operations: Sequence[AllReduceOperation]) -> Program:
        """Reduce the arrays of several operations together, those of one dtype in one message."""
        for part in self._parts(operations):
            yield from part
        return [frozenset()] * len(operations)

    def _parts(self, operations: Sequence[AllReduceOperation], *, finite: bool = True) -> Iterator[Program]:
        arrays = [(op.name, array) for op in operations for array in op.arrays]
        groups: dict[tuple[str, bool], list[tuple[str, Array]]] = {}
        for number, (name, array) in enumerate(arrays):
            accepted = self.compressor is not None and self._is_encoded(array) and (bool(self.layout) or self.compressor.accepts(array.shape))
            key = name if len(arrays) == 1 else f"{name}[{number}]"
            groups.setdefault((dtype_name(array), accepted), []).append((key, array))
        for (_, accepted), group in groups.items():
            if accepted and not finite:
                for _, array in group:
                    array[...] = math.nan
            else:
                yield self._reduced(group, self.compressor if accepted else None)

    def _is_encoded(self, array: Array) -> bool:
        """Compressors work on real numbers; counters and masks of a group travel as they are."""
        return self.compressor is not None and (self.compressor.any_dtype or dtype_name(array).startswith(("float", "bfloat")))

    def _reduced(self, group: list[tuple[str, Array]], compressor: Compressor | None) -> Program:
        """Reduce arrays of one dtype as one vector."""
        xp = ops(group[0][1])
        flat = group[0][1].reshape(-1) if len(group) == 1 else xp.concat([a for _, a in group])
        if self.prescale != 1.0:
            scale(flat, self.prescale)
        layout = self.layout or [(name, tuple(a.shape)) for name, a in group]
        if self.op is Adasum:
            codec = Cast(dtype_name(flat)) if compressor is None else compressor.rounding
            assert codec is not None
            yield from self._adaptively_summed(flat, layout, codec)
        elif compressor is not None:
            yield from self._compressed(flat, layout, compressor)
        else:
            yield from self._plain(flat)
        if len(group) > 1:
            deal_out(flat, [array for _, array in group])

    def _adaptively_summed(self, flat: Array, layout: Sequence[tuple[str, tuple[int, ...]]], codec: Codec) -> Program:
        """Each tensor by itself, however many travel together."""
        lengths = [math.prod(shape) for _, shape in layout]
        if self.count > 1:
            given = flat if self.compressor is None else ops(flat).cast(flat, "float32")
            yield from adasum(given, lengths, self.place, self.count, codec)
            if given is not flat:
                flat[...] = ops(flat).cast(given, dtype_name(flat))
        if self.postscale != 1.0:
            scale(flat, self.postscale)

    def _plain(self, flat: Array) -> Program:
        dtype, op = dtype_name(flat), COMBINE[self.op]
        is_resident = self.resident and self.present is None
        factor = self.postscale / (self.divisor if self.op is Average else 1)
        if dtype in NARROW_FLOATS:
            result, _ = yield from two_sided(Bucket.of(flat, [], self.place, self.count), Cast(dtype), op, factor)
            if result is not flat:
                flat[...] = result
            return
        if dtype == "bool":
            flat = flat.view(np.uint8)
        if is_floating(dtype):
            yield AllReduce(flat, op, is_resident, self.prescale == 1.0, factor)
            return
        yield AllReduce(flat, op, is_resident)
        if self.op is Average:
            divide(flat, self.divisor)
        if self.postscale != 1.0:
            scale(flat, self.postscale)

    def _compressed(self, flat: Array, layout: Sequence[tuple[str, tuple[int, ...]]], compressor: Compressor) -> Program:
        xp, dtype = ops(flat), dtype_name(flat)
        if self.carrier is not None and dtype == "float32":
            if self.present is None:
                yield from self._carried(flat, layout, compressor, self.carrier)
            else:  # of a node some may be away, and what the compressor remembers is the node's: it waits until all are back
                yield from self._plain(flat)
            return
        given = flat if compressor.any_dtype else xp.cast(flat, "float32")
        mean, _ = yield from compressor.exchange(Bucket.of(given, layout, self.place, self.count))
        if mean is not flat:
            flat[...] = xp.cast(mean, dtype)
        self._rescale(flat)

    def _carried(self, flat: Array, layout: Sequence[tuple[str, tuple[int, ...]]], compressor: Compressor, carrier: Carrier) -> Program:
        """The ranks of a node add up in memory. One of them exchanges the sum with those of the other nodes, in units in which their mean is everybody's."""
        yield NodeReduce(flat, carrier.local_rank, self.prescale == 1.0, carrier.num_nodes / self.num_ranks)
        if carrier.is_here:
            mean, _ = yield from _across(compressor.exchange(Bucket.of(flat, layout, carrier.node, carrier.num_nodes)))
            if mean is not flat:
                flat[...] = mean
            self._rescale(flat)
        yield NodeShare(flat, carrier.local_rank)

    def _rescale(self, mean: Array) -> None:
        factor = self.postscale * (self.count if self.op is Sum else self.count / self.divisor)
        if factor != 1.0:
            scale(mean, factor)


def _across(exchange: Exchange) -> Generator[Across | Step, Any, tuple[Array, Sent]]:
    """An exchange among the carriers of the nodes."""
    answer = None
    while True:
        try:
            step = exchange.send(answer)
        except StopIteration as stop:
            result: tuple[Array, Sent] = stop.value
            return result
        match step:
            case Start(request):
                answer = yield Start(Across(request))
            case PieceBytes() | Finish():
                answer = yield step
            case _:
                answer = yield Across(step)
