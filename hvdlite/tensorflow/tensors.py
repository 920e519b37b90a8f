"""Tensors as arrays and back, and where a call finds itself: eager, in a graph, or where Python functions cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvdlite import Array, SettingError

_ALIGNMENT_BYTES = 64
_Function = TypeVar("_Function", bound=Callable[..., Any])


def plain_python(function: _Function) -> _Function:
    """AutoGraph, which rewrites what a ``tf.function`` calls, leaves this one alone: its branches and loops are decided while tracing."""
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted


def as_array(tensor: Any) -> Array:
    """The values of an eager tensor or variable, contiguous, not to be written: its own memory where that lies in main memory."""
    return np.asarray(tensor, order="C")


def copied(array: Array) -> Array:
    """The array as a function in a graph may return it. TensorFlow takes aligned memory as its own, and copies the other: so one copy is made, not two."""
    if array.ctypes.data % _ALIGNMENT_BYTES:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def is_tracing() -> bool:
    """Whether a graph is being built: by ``tf.function``, or for a session."""
    return not tf.executing_eagerly()


def is_for_session() -> bool:
    """Whether a graph is being built that a session will run (TensorFlow 1).

    A ``tf.function`` runs its functions in the order in which they were made. A session runs whatever is ready, in as many threads as it has, and only
    what leads to the wanted tensors.
    """
    return is_tracing() and not getattr(tf.compat.v1.get_default_graph(), "_add_control_dependencies", False)


def apart(function: Callable[[Any], list[Array]], argument: tf.Tensor, dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """In a graph, call a function that may wait for long, in a thread of its own and in no order but that of the data.

    A function that waits for other ranks in one of TensorFlow's threads, or before whatever comes next, may keep this rank from handing over what those
    ranks wait for: ranks that come to their collectives in different order would wait forever. Data pipelines have threads of their own, so this is a
    pipeline with one element. The graph of a ``tf.function`` puts whatever has effects in order; a function without effects in it, which may not be
    dissolved, escapes that.
    """
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False

    def wait(argument: tf.Tensor) -> list[tf.Tensor]:
        pipeline = tf.data.Dataset.from_tensors(argument).map(lambda a: tf.numpy_function(function, [a], dtypes))
        return list(pipeline.with_options(options).get_single_element())

    if is_for_session():
        return wait(argument)
    body = tf.function(wait, experimental_attributes={"_noinline": True}, autograph=False).get_concrete_function(tf.TensorSpec((), argument.dtype))
    body.add_to_graph()
    results = list(tf.raw_ops.PartitionedCall(args=[argument], Tout=list(dtypes), f=body))
    tf.compat.v1.get_default_graph().control_outputs.append(results[0].op)  # waited for though nobody may use the result
    return results


def refuse_xla(what: str) -> None:
    """Raise where XLA compiles: it cannot run the functions that communicate.

    Raises:
        SettingError: inside ``tf.function(jit_compile=True)``.
    """
    if is_tracing() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise SettingError(
            f"{what!r} is communicated inside a function with jit_compile=True, and XLA cannot call a communication library; "
            "a function without it is expected; compile the forward and backward pass alone, or pass jit_compile=False"
        )


def in_creation_order(gradients: Mapping[int, Any]) -> list[int]:
    """The keys in the order in which the graph makes their gradients: the order in which the backward pass has them."""
    place = {op.name: i for i, op in enumerate(tf.compat.v1.get_default_graph().get_operations())}

    def placed(key: int) -> int:
        gradient = gradients[key]
        tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        return 0 if tensor is None else place.get(tensor.op.name, 0)  # 0: it was there before this graph

    return sorted(gradients, key=placed)
