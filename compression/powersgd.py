"""Low-rank gradients: each matrix travels as the product of two thin ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

import numpy as np

from ..arrays import Array, ops
from ..errors import CompressionError
from ._contract import MIN_COMPRESSED_ELEMENTS, AllReduce, Bucket, Compressor, Exchange, Tensor


@dataclass
class PowerSGD(Compressor):
    """One step of subspace iteration per exchange, warm-started (Vogels, Karimireddy & Jaggi, "PowerSGD", NeurIPS 2019).

    For a gradient seen as a matrix ``A`` of ``shape[0]`` rows: ``P = orthonormal(sum A Q)``, ``Q = mean A^T P``, result ``P Q^T``; the next
    exchange starts from this ``Q``. The first ``Q`` is random, the same on every rank, and depends on the parameter's name alone. Tensors
    that are not worth it (:meth:`accepts`) ride along exactly, with the first reduction.

    Wire: two allreduces, of ``4 rank sum(rows)`` bytes and whatever rides along, and of ``4 rank sum(columns)`` bytes.
    """

    biased: ClassVar[bool] = True
    depends_on_bucket: ClassVar[bool] = False

    rank: int = 4  # columns of P and of Q
    min_compression_rate: float = 2.0  # a matrix that would not shrink by more than this travels dense
    _q: dict[str, Array] = field(default_factory=dict, init=False, repr=False)  # by parameter: Q^T, each row of largest magnitude 1

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise CompressionError(f"rank={self.rank} sends nothing; expected a whole number from 1; try powersgd:rank=4")
        if not 1 <= self.min_compression_rate < math.inf:
            raise CompressionError(
                f"min_compression_rate={self.min_compression_rate} is no rate of compression; expected a number from 1; try powersgd:min_compression_rate=2"
            )

    def exchange(self, bucket: Bucket) -> Exchange:
        """Two allreduces; each gradient is read twice and its estimate written once."""
        xp = ops(bucket.flat)
        matrices, dense = self._split(bucket)
        grads = [_matrix(t.array) for t in matrices]
        sizes = [(a.shape[0], self.rank) for a in grads] + [tuple(t.array.shape) for t in dense]
        request = xp.empty((sum(map(math.prod, sizes)),), "float32")
        parts = _views(request, sizes)
        old = [self._start(t.name, a) for t, a in zip(matrices, grads, strict=True)]
        for a, q, p in zip(grads, old, parts, strict=False):
            xp.matmul(a, q.T, p)
        for tensor, part in zip(dense, parts[len(grads) :], strict=True):
            part[...] = tensor.array
        reduced = yield AllReduce(request)
        _orthonormalise(reduced, [a.shape[0] for a in grads], self.rank)
        parts = _views(reduced, sizes)

        if grads:
            sizes = [(self.rank, a.shape[1]) for a in grads]
            request = xp.empty((sum(map(math.prod, sizes)),), "float32")
            for a, p, q in zip(grads, parts, _views(request, sizes), strict=False):
                xp.matmul(p.T, a, q)
            mean_q = yield AllReduce(request, factor=1 / bucket.num_ranks)
            rows = _views(mean_q, sizes)
            self._q.update({t.name: _warm(q, before) for t, q, before in zip(matrices, rows, old, strict=True)})

        matrices, dense = self._split(bucket.with_flat(bucket.out))  # from here on no gradient is read, so its memory may be the result's
        for tensor, p, q in zip(matrices, parts, rows if grads else [], strict=False):
            xp.low_rank(p, q, _matrix(tensor.array))
        for tensor, part in zip(dense, parts[len(grads) :], strict=True):
            tensor.array[...] = part / bucket.num_ranks
        layout = [(t.name, tuple(t.array.shape)) for t in bucket.tensors]
        return bucket.out, _Product(self, layout, parts[: len(grads)], rows if grads else [])

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Two allreduces: P and the dense tensors, then Q."""
        first = sum(self.rank * s[0] if self.accepts(s) else math.prod(s) for s in shapes)
        second = sum(self.rank * math.prod(s[1:]) for s in shapes if self.accepts(s))
        return sum(round(2 * (num_ranks - 1) / num_ranks * 4 * elements) for elements in (first, second))

    def accepts(self, shape: Sequence[int]) -> bool:
        """Matrices that shrink by more than ``min_compression_rate``."""
        return self.rank <= self._highest_rank(shape)

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuse a rank that leaves nothing to compress where a lower one would."""
        limits = {name: self._highest_rank(shape) for name, shape in shapes.items()}
        name = max(limits, key=lambda n: limits[n], default="")
        if name and 0 < limits[name] < self.rank:
            rows, columns = shapes[name][0], math.prod(shapes[name][1:])
            raise CompressionError(
                f"rank={self.rank} is too high for every matrix of this model; "
                f"the largest, {name} ({rows}x{columns}), allows at most {limits[name]}; lower rank, or use another compressor"
            )

    def state_dict(self) -> dict[str, dict[str, Array]]:
        """The Q of every parameter seen or loaded."""
        return {name: {"q": ops(q).to_numpy(q).copy()} for name, q in self._q.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Array]]) -> None:
        """Forget every Q, take over the given ones. One of another rank is ignored: its parameter starts afresh."""
        self._q = {name: np.array(quantities["q"], dtype=np.float32) for name, quantities in state.items() if "q" in quantities}

    def _highest_rank(self, shape: Sequence[int]) -> int:
        """The highest rank at which a tensor of this shape is compressed; 0 if at none."""
        if len(shape) < 2 or math.prod(shape) < MIN_COMPRESSED_ELEMENTS:
            return 0
        rows, columns = shape[0], math.prod(shape[1:])
        return math.ceil(rows * columns / ((rows + columns) * self.min_compression_rate)) - 1

    def _split(self, bucket: Bucket) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors to compress, those of as many rows side by side, and the others."""
        matrices = sorted((t for t in bucket.tensors if self.accepts(t.array.shape)), key=lambda t: int(t.array.shape[0]))
        return matrices, [t for t in bucket.tensors if not self.accepts(t.array.shape)]

    def _start(self, name: str, grad: Array) -> Array:
        """The Q^T to start from: the last one, or a random one that is the same on every rank and in every run."""
        q, shape = self._q.get(name), (self.rank, grad.shape[1])
        if q is None or tuple(q.shape) != shape:
            key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
            q = np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, dtype=np.float32)
        return ops(grad).from_numpy(q) if isinstance(q, np.ndarray) else q


@dataclass(frozen=True)
class _Product:
    """What every rank sent of each matrix: ``P Q^T``, the estimate itself; and the rest exactly."""

    compressor: PowerSGD
    layout: Sequence[tuple[str, tuple[int, ...]]]
    p: Sequence[Array]
    q: Sequence[Array]

    def subtract_from(self, given: Array) -> None:
        """``given -= P Q^T``, in place."""
        matrices, dense = self._split(given)
        for tensor, p, q in zip(matrices, self.p, self.q, strict=True):
            product = ops(given).empty(_matrix(tensor.array).shape, "float32")
            ops(given).low_rank(p, q, product)
            tensor.array[...] -= product.reshape(tensor.array.shape)
        for tensor in dense:
            tensor.array[...] = 0

    def fold(self, given: Array, more: Array) -> None:
        """``given = (given - P Q^T) + more``, in place."""
        (matrices, dense), (other_matrices, other_dense) = self._split(given), self._split(more)
        for tensor, other, p, q in zip(matrices, other_matrices, self.p, self.q, strict=True):
            ops(given).fold_low_rank(p, q, _matrix(other.array), _matrix(tensor.array))
        for tensor, other in zip(dense, other_dense, strict=True):
            tensor.array[...] = other.array

    def _split(self, vector: Array) -> tuple[list[Tensor], list[Tensor]]:
        return self.compressor._split(Bucket.of(vector, self.layout, 0, 1))


def _matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], -1)


def _views(vector: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Consecutive parts of the vector, in these shapes."""
    views, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        views.append(vector[start:stop].reshape(shape))
        start = stop
    return views


def _orthonormalise(vector: Array, rows: Sequence[int], rank: int) -> None:
    """Orthonormalise the matrices at the vector's beginning in place, those of as many rows as one stack."""
    start = 0
    for height, group in groupby(rows):
        count = len(list(group))
        stop = start + count * height * rank
        stack = vector[start:stop].reshape(count, height, rank)
        stack[...] = ops(vector).orthonormal(stack)
        start = stop


def _warm(q: Array, before: Array) -> Array:
    """What the next step starts from.

    The length of a row does not matter to P, but products of unscaled ones would leave the range of float32. A row of zeros (no
    gradient, or none in its direction) would stay zero for ever, so the one before it is kept.
    """
    top = ops(q).block_absmax(q)[:, None]
    return ops(q).where(top > 0, q / top.clip(2.0**-126, None), before)
