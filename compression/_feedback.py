"""Error feedback: what a compressor did not send is added to the next gradient (Seide et al. 2014; Karimireddy et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ..arrays import Array, ops
from ._contract import AllReduce, Bucket, Compressor, Dense, Exchange, Lasting

RESIDUAL = "residual"

_Key: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""The composition of a bucket."""


@dataclass
class ErrorFeedback(Compressor):
    """Keep a residual around ``inner``: ``given = gradient + residual``, afterwards ``residual = given - sent``.

    Guards: the engine never starts an exchange with a non-finite gradient, so a residual is never poisoned; residuals are keyed by
    parameter name, saved and loaded; :meth:`rescale` follows a changed loss scale; :meth:`flush` sends everything that is left.
    """

    inner: Compressor
    _flats: dict[_Key, Array] = field(default_factory=dict, init=False, repr=False)
    _views: dict[str, Array] = field(default_factory=dict, init=False, repr=False)
    _loaded: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict, init=False, repr=False)
    _unsubtracted: dict[_Key, Lasting] = field(default_factory=dict, init=False, repr=False)  # these flats still hold what was given
    _to_flush: set[str] = field(default_factory=set, init=False, repr=False)

    @property
    def depends_on_bucket(self) -> bool:  # type: ignore[override]
        """As the inner compressor's: a residual is kept entry by entry."""
        return self.inner.depends_on_bucket

    def exchange(self, bucket: Bucket) -> Exchange:
        """Exchange ``gradient + residual`` through the inner compressor, and keep what it did not send."""
        given = self._given(bucket)
        if self._to_flush.intersection(t.name for t in bucket.tensors):
            self._to_flush.difference_update(t.name for t in bucket.tensors)
            bucket.out[:] = given
            given[:] = 0
            mean = yield AllReduce(bucket.out, factor=1 / bucket.num_ranks)
            return mean, Dense(lambda: given)
        mean, sent = yield from self.inner.exchange(bucket.with_flat(given))
        if isinstance(sent, Lasting):
            self._unsubtracted[_key(bucket)] = sent
        else:
            sent.subtract_from(given)
        return mean, sent

    def wire_bytes(self, shapes: Sequence[Sequence[int]], num_ranks: int) -> int:
        """Those of the inner compressor."""
        return self.inner.wire_bytes(shapes, num_ranks)

    def accepts(self, shape: Sequence[int]) -> bool:
        """What the inner compressor accepts."""
        return self.inner.accepts(shape)

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """What the inner compressor checks."""
        self.inner.check(shapes)

    def state_dict(self) -> dict[str, dict[str, Array]]:
        """The inner state, and a residual for every parameter seen so far or loaded and not seen since."""
        self._subtract()
        state = {name: dict(quantities) for name, quantities in self.inner.state_dict().items()}
        residuals = self._loaded | {name: ops(view).to_numpy(view).copy() for name, view in self._views.items()}
        for name, residual in residuals.items():
            state.setdefault(name, {})[RESIDUAL] = residual
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Array]]) -> None:
        """Forget every residual, take over the given ones."""
        self.inner.load_state_dict({n: {q: v for q, v in quantities.items() if q != RESIDUAL} for n, quantities in state.items()})
        self._flats.clear()
        self._unsubtracted.clear()
        self._views.clear()
        self._loaded = {name: np.array(q[RESIDUAL], dtype=np.float32) for name, q in state.items() if RESIDUAL in q}

    def squared_residual(self, names: Sequence[str]) -> float:
        """That of the residuals."""
        self._subtract()
        return sum(float((view * view).sum()) for name in names if (view := self._views.get(name)) is not None)

    def rescale(self, factor: float) -> None:
        """Multiply the residuals, which are in units of the scaled loss."""
        self._subtract()
        self.inner.rescale(factor)
        for residual in (*self._views.values(), *self._loaded.values()):
            residual *= factor

    def flush(self) -> None:
        """Send gradient plus residual uncompressed next time, and start again from a residual of zero."""
        self.inner.flush()
        self._to_flush = set(self._views) | set(self._loaded)

    @property
    def spec(self) -> str:
        """The inner compressor's, with feedback."""
        return self.inner.spec_with(feedback=True)

    @property
    def signature(self) -> str:
        """The spec, and whether the next exchange flushes: ranks must agree on both."""
        return self.spec + (" (flushing)" if self._to_flush else "")

    def _given(self, bucket: Bucket) -> Array:
        """Gradient plus residual, in the residual's memory."""
        given, sent = self._residual_of(bucket), self._unsubtracted.pop(_key(bucket), None)
        if sent is not None:
            sent.fold(given, bucket.flat)
        else:
            given += bucket.flat
        return given

    def _subtract(self) -> None:
        """Bring every residual up to date."""
        for key, sent in self._unsubtracted.items():
            sent.subtract_from(self._flats[key])
        self._unsubtracted.clear()

    def _residual_of(self, bucket: Bucket) -> Array:
        """The residual of the whole bucket in one vector; laid out anew, by name, when the bucket's composition changed."""
        key = _key(bucket)
        if key not in self._flats:
            self._subtract()
            flat = ops(bucket.flat).zeros(bucket.flat.shape, "float32")
            ours = {t.name for t in bucket.tensors}
            self._flats = {layout: old for layout, old in self._flats.items() if ours.isdisjoint(name for name, _ in layout)}
            for tensor in bucket.with_flat(flat).tensors:
                self._restore(tensor.name, tensor.array)
                self._views[tensor.name] = tensor.array
            self._flats[key] = flat
        return self._flats[key]

    def _restore(self, name: str, into: Array) -> None:
        old = self._views.get(name)
        if old is None and name in self._loaded:
            old = ops(into).from_numpy(self._loaded.pop(name))
        if old is not None and tuple(old.shape) == tuple(into.shape):
            into[...] = old


def _key(bucket: Bucket) -> _Key:
    return tuple((t.name, tuple(t.array.shape)) for t in bucket.tensors)
