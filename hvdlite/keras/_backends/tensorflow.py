"""Keras on TensorFlow: a step compiled by ``tf.function`` calls back into Python once all gradients are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..exchange import Exchange


class BackendExchange(Exchange):
    """Exchanges TensorFlow tensors, in graphs and eagerly. ``IndexedSlices`` are made dense."""

    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The means; inside a ``tf.function``, what computes them."""
        present = [g is not None for g in gradients]
        given = [tf.convert_to_tensor(g) for g in gradients if g is not None]

        def exchange(*tensors: Any) -> list[Any]:
            left = iter(tensors)
            arrays = [next(left).numpy() if is_there else None for is_there in present]
            out = [None if a is None else np.empty_like(a) for a in arrays]
            self.reduce_into(arrays, self._weights, out)
            return [o for o in out if o is not None]

        if tf.executing_eagerly():
            means = self.reduce([None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients], self._weights)
            return [None if m is None else tf.constant(m) for m in means]
        results = tf.py_function(exchange, given, [g.dtype for g in given])
        for gradient, result in zip(given, results, strict=True):
            result.set_shape(gradient.shape)
        left = iter(results)
        return [next(left) if is_there else None for is_there in present]

    def _weights(self) -> list[Any]:
        return [v.value.numpy() for v in self.variables]

    def all_finite(self, finite: Any) -> Any:
        """The agreement; inside a ``tf.function``, what finds it."""
        if tf.executing_eagerly():
            return tf.constant(self.agree(bool(finite)))
        agreed = tf.py_function(lambda mine: self.agree(bool(mine)), [finite], tf.bool)
        agreed.set_shape(())
        return agreed
