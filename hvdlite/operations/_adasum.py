"""Adaptive summation of vectors over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from ..arrays import Array, dtype_name, ops
from ..compression import AllGather, AllReduce, AllToAll
from ..compression._two_sided import Codec, chunk_elements, padded
from ..submissions import Program

_SMALLEST = float(np.sqrt(np.finfo(np.float64).tiny))
"""A squared length below it says nothing: such a vector is added as it is."""
_TILE = 1 << 15


def adasum(flat: Array, lengths: Sequence[int], rank: int, num_ranks: int, codec: Codec) -> Program:
    """Combine the ranks' vectors by Adasum, in place (Maleki et al., "Scaling distributed training with adaptive summation", 2020,
    arXiv 2006.02924). Every rank gets the same bits.

    Two vectors a and b give ``(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b``: orthogonal ones add up, parallel ones average. More are combined
    in a tree: neighbours first, then neighbouring pairs; one that has no neighbour waits for the next round. For a power of two that is the paper's
    recursion, and Horovod's. Elsewhere the halves stand for different numbers of ranks, m and n, and weigh as much: ``(1 - m/(m+n) a.b / |a|^2) a +
    (1 - n/(m+n) a.b / |b|^2) b``. So parallel vectors of any number of ranks give their mean, and orthogonal ones their sum.

    Each rank combines a share of all vectors: one exchange, for each level of the tree a small sum of the products over the shares, one gather.

    Args:
        flat: floats; the tensors one after the other.
        lengths: of the tensors. Each has factors of its own.
        rank: this one.
        num_ranks: how many there are.
        codec: how values are written on the wire. They are combined in float32, those of float64 in their own type; products are taken in float64.
    """
    xp, size = ops(flat), flat.shape[0]
    wide = "float64" if dtype_name(flat) == "float64" else "float32"
    share = chunk_elements(size, num_ranks, codec.block)
    places = [slice(min(r * share, size), min((r + 1) * share, size)) for r in range(num_ranks)]
    received = yield AllToAll([codec.encode(padded(flat[p], share)) for p in places])
    vectors = []
    for payload in received:
        vectors.append(xp.empty((places[rank].stop - places[rank].start,), wide))
        codec.decode(payload, vectors[-1])
    tensors = list(_within(lengths, places[rank]))
    for pairs in _levels(num_ranks):
        products = np.zeros((len(pairs), len(lengths), 3))
        for pair, (left, right, _) in zip(products, pairs, strict=True):
            for number, part in tensors:
                pair[number] = _products(vectors[left][part], vectors[right][part])
        yield AllReduce(products)
        for pair, (left, right, weight) in zip(products, pairs, strict=True):
            for number, part in tensors:
                _add(vectors[left][part], vectors[right][part], pair[number], weight)
    for place, payload in zip(places, (yield AllGather(codec.encode(padded(vectors[0], share)))), strict=True):
        codec.decode(payload, flat[place])


def _levels(num_ranks: int) -> Iterator[list[tuple[int, int, float]]]:
    """Of each round, who is combined with whom, the result replacing the first; and which part of the ranks below both is below the first."""
    heads = [(r, 1) for r in range(num_ranks)]
    while len(heads) > 1:
        pairs = list(zip(heads[::2], heads[1::2], strict=False))
        yield [(left, right, m / (m + n)) for (left, m), (right, n) in pairs]
        heads = [(left, m + n) for (left, m), (_, n) in pairs] + heads[2 * len(pairs) :]


def _within(lengths: Sequence[int], place: slice) -> Iterator[tuple[int, slice]]:
    """The tensors of which a part lies in this place, and where in it that is."""
    for number, (end, length) in enumerate(zip(accumulate(lengths), lengths, strict=True)):
        start, stop = max(end - length, place.start), min(end, place.stop)
        if start < stop:
            yield number, slice(start - place.start, stop - place.start)


def _products(a: Array, b: Array) -> tuple[float, float, float]:
    """``a.b``, ``a.a`` and ``b.b`` in float64."""
    total = np.zeros(3)
    for start in range(0, a.shape[0], _TILE):
        x, y = (ops(v).cast(v[start : start + _TILE], "float64") for v in (a, b))
        total += (float(x @ y), float(x @ x), float(y @ y))
    return float(total[0]), float(total[1]), float(total[2])


def _add(a: Array, b: Array, products: Sequence[float], weight: float) -> None:
    """The combination of two vectors, in the place of the first."""
    both, of_a, of_b = map(float, products)
    a *= 1 - weight * both / of_a if of_a >= _SMALLEST else 1.0
    a += b * (1 - (1 - weight) * both / of_b if of_b >= _SMALLEST else 1.0)
