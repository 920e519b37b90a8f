"""Keras on JAX: the compiled step calls back into Python, on the buffers where they lie.

``jax.experimental.buffer_callback`` copies nothing and needs no second thread of XLA's pool, so that it cannot deadlock on a machine with one
core, as the array-based callbacks can. The step that follows depends on the result, so calls happen once a step and in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hvdlite import SettingError
from hvdlite.errors import MissingDependencyError

from ..exchange import Exchange

try:
    from jax.experimental.buffer_callback import buffer_callback
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"JAX {jax.__version__} has no buffer_callback, through which a compiled step exchanges gradients; a newer JAX is expected; pip install --upgrade jax"
    ) from error


class BackendExchange(Exchange):
    """Exchanges JAX arrays, in compiled and in eager steps."""

    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The means; inside ``jit``, what computes them."""
        _check_platform()
        present = [g is not None for g in gradients]
        given = [g for g in gradients if g is not None]
        weights = [jax.numpy.asarray(v.value) for v in self.variables]

        def spread(found: Sequence[Any]) -> list[Any]:
            left = iter(found)
            return [np.asarray(next(left)) if is_there else None for is_there in present]

        def exchange(_: Any, out: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
            self.reduce_into(spread(gradients), lambda: map(np.asarray, weights), spread(out))

        if not any(isinstance(g, jax.core.Tracer) for g in given):
            means = self.reduce([None if g is None else np.asarray(g) for g in gradients], lambda: map(np.asarray, weights))
            return [None if m is None else jax.numpy.array(m) for m in means]
        shapes = [jax.ShapeDtypeStruct(g.shape, g.dtype) for g in given]
        left = iter(buffer_callback(exchange, shapes, has_side_effect=True)(given, weights))
        return [next(left) if is_there else None for is_there in present]

    def all_finite(self, finite: Any) -> Any:
        """The agreement; inside ``jit``, what finds it."""
        _check_platform()

        def agree(_: Any, out: Any, finite: Any) -> None:
            np.asarray(out)[...] = self.agree(bool(np.asarray(finite)))

        if not isinstance(finite, jax.core.Tracer):
            return jax.numpy.asarray(self.agree(bool(finite)))
        return buffer_callback(agree, jax.ShapeDtypeStruct((), bool), has_side_effect=True)(finite)


def _check_platform() -> None:
    platform = jax.default_backend()
    if platform != "cpu":
        raise SettingError(f"JAX runs on {platform}; this version of hvdlite exchanges what lies in main memory; set JAX_PLATFORMS=cpu")
