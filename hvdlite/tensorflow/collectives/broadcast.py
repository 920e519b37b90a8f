"""Copy tensors of one rank to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, Average, ProcessSet, global_process_set

from ..tensors import is_for_session, plain_python
from ..variables import names_of
from .calls import Call, called, traced_name
from .reduction import reduced


@plain_python
def broadcast(tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """A new tensor with the values of ``root_rank``. Differentiable: the root's input gets the mean of all gradients, the others' zero."""
    name = traced_name(name, "broadcast", process_set)

    def communicate(array: Array) -> Call:
        result = np.array(array, order="C")
        yield hvdlite.broadcast_async([result], root_rank, name=name, process_set=process_set)
        return [result]

    def send(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            (mean,) = reduced([upstream], Average, 1.0, 1.0, None, None, process_set)
            if hvdlite.rank() == root_rank:
                return mean
            with tf.control_dependencies([mean]):  # a session would leave out the reduction, for which the root waits
                return tf.zeros(tf.shape(mean), mean.dtype)

        return called(communicate, [given], [(given.dtype, given.shape)])[0], gradient

    result: tf.Tensor = tf.custom_gradient(send)(tf.convert_to_tensor(tensor))
    return result


@plain_python
def broadcast_(variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Overwrite variables with those of ``root_rank``, all at once; returns them. In a graph for a session, running what is returned does it."""
    variables = list(variables)
    if not variables:
        return variables
    name = traced_name(name, "broadcast", process_set)
    labels = names_of(variables)

    def communicate(*arrays: Array) -> Call:
        results = [np.array(a, order="C") for a in arrays]
        yield hvdlite.broadcast_async(results, root_rank, name=name, names=labels, process_set=process_set)
        return results

    given = [tf.convert_to_tensor(v) for v in variables]
    values = called(communicate, given, [(t.dtype, t.shape) for t in given])
    assigned = [v.assign(value) for v, value in zip(variables, values, strict=True)]
    return assigned if is_for_session() else variables
