"""Keras on TensorFlow: the exchange of :mod:`hvdlite.tensorflow`, during the backward pass; gradients of several passes are added up in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.tensorflow.gradients import GradientExchange
from hvdlite.tensorflow.tensors import as_array, is_tracing, refuse_xla

from ..exchange import Exchange, Options


class BackendExchange(Exchange):
    """Exchanges TensorFlow tensors, in graphs and eagerly. ``IndexedSlices`` travel dense: Keras's optimizers square gradients, so rows must not repeat."""

    def __init__(self, variables: Sequence[Any], options: Options):
        super().__init__(variables, options)
        self._whole: GradientExchange | None = None
        if options.passes == 1:
            self._whole = GradientExchange(
                self._name,
                self._parameters,
                self.compressor,
                op=options.op,
                predivide=options.predivide,
                sparse_as_dense=True,
                process_set=options.process_set,
            )
            self.compressor = self._whole.compressor

    @property
    def order(self) -> list[str]:
        """The order of the variables in the buckets, once it is final."""
        return super().order if self._whole is None else self._whole.order

    def lay_out_as(self, order: Sequence[str]) -> None:
        """Lay the buckets out as in an earlier run."""
        if self._whole is None:
            super().lay_out_as(order)
        else:
            self._whole.restore_order(order)

    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The means; inside a ``tf.function``, what computes them."""
        refuse_xla(self._name)
        if self._whole is None:
            return self._added_up(gradients)
        if is_tracing():
            tf.numpy_function(self._enter, [_first_entry(gradients)], [])
        else:
            self._enter()
        return self._whole.exchange(gradients)

    def _enter(self, *_: Any) -> tuple[()]:
        self.begin(self._weights)
        self.hear()
        return ()

    def _added_up(self, gradients: Sequence[Any]) -> list[Any]:
        given = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        if not is_tracing():
            means = self.reduce([None if g is None else as_array(g) for g in given], self._weights)
            return [None if m is None else tf.constant(m) for m in means]
        present = [g for g in given if g is not None]

        def spread(found: Sequence[Any]) -> list[Any]:
            left = iter(found)
            return [None if g is None else np.asarray(next(left)) for g in given]

        def exchange(*arrays: Any) -> list[Any]:
            out = [np.empty_like(a) for a in arrays]
            self.reduce_into(spread(arrays), self._weights, spread(out))
            return out

        results = tf.numpy_function(exchange, present, [g.dtype for g in present])
        return _spread_tensors(given, results)

    def _weights(self) -> list[Any]:
        return [as_array(v if isinstance(v, tf.Variable) else v.value) for v in self.variables]

    def all_finite(self, finite: Any) -> Any:
        """The agreement; inside a ``tf.function``, what finds it."""
        refuse_xla(self._name)
        if not is_tracing():
            return tf.constant(self.agree(bool(finite)))
        return tf.ensure_shape(tf.numpy_function(lambda mine: np.asarray(self.agree(bool(mine))), [finite], tf.bool), ())


def _first_entry(gradients: Sequence[Any]) -> tf.Tensor:
    """Of the gradient that the backward pass has first: once it exists, so does the batch. A function of nothing runs before."""
    last = next((g for g in reversed(gradients) if g is not None), None)
    return tf.zeros((1,)) if last is None else tf.reshape(last.values if isinstance(last, tf.IndexedSlices) else last, (-1,))[:1]


def _spread_tensors(given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Results for those that are given, with their shapes."""
    left = iter(results)
    return [None if g is None else tf.ensure_shape(next(left), g.shape) for g in given]
