"""The collectives on tensors, variables and ``tf.IndexedSlices``, with Horovod's names and arguments: eagerly, in a graph, and with gradients.

``device_dense``, ``device_sparse`` and ``ignore_name_scope`` are Horovod's, and change nothing. Without a ``name``, the n-th unnamed call of a kind
belongs together on all ranks; in a graph, calls are counted when they are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import Array, Average, ReduceOp, SettingError, Sum

from .compression import Compression, is_horovod_compressor
from .tensors import as_array, is_tracing, plain_python, refuse_xla


@plain_python
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine a tensor over the ranks; returns a new one. Differentiable for Average and Sum.

    Args:
        tensor: a tensor or variable, the same shape and dtype on every rank; or ``tf.IndexedSlices``, whose slices are gathered.
        average: deprecated form of ``op``.
        device_dense: ignored.
        device_sparse: ignored.
        compression: a spec such as ``"fp16"``, ``Compression.x``, or a class with Horovod's ``compress`` and ``decompress``.
        op: Average (default), Sum, Min, Max or Product; for slices Average or Sum.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
        name: identifies the tensor across ranks.
        process_set: None.
        ignore_name_scope: ignored.
    """
    return grouped_allreduce([tensor], average, "", "", compression, op, prescale_factor, postscale_factor, process_set, name=name)[0]


@plain_python
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Combine tensors over the ranks, as one unit; returns new tensors. Differentiable for Average and Sum. See :func:`allreduce`."""
    check_process_set(process_set)
    op = _op(average, op)
    if any(isinstance(t, tf.IndexedSlices) for t in tensors):
        names = [_part(name, i) for i in range(len(tensors))]
        factor = prescale_factor * postscale_factor
        return [
            _reduced_slices(t, op, factor, n)
            if isinstance(t, tf.IndexedSlices)
            else allreduce(t, None, "", "", compression, op, prescale_factor, postscale_factor, n)
            for t, n in zip(tensors, names, strict=True)
        ]
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    if is_horovod_compressor(compression):
        pairs = [compression.compress(t) for t in tensors]
        small = _reduced([t for t, _ in pairs], op, prescale_factor, postscale_factor, None, name)
        return [compression.decompress(t, context) for t, (_, context) in zip(small, pairs, strict=True)]
    return _reduced(tensors, op, prescale_factor, postscale_factor, compression, name)


def _op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else ReduceOp(op)


def _reduced(tensors: Sequence[tf.Tensor], op: ReduceOp, prescale: float, postscale: float, compression: Any, name: str | None) -> list[tf.Tensor]:
    """Every rank's loss depends on every rank's input: the gradient is reduced the same way."""
    compressor = Compression.resolve(compression)
    name = _name(name, "allreduce")

    def communicate(*arrays: Array) -> list[Array]:
        results = [np.array(a, order="C") for a in arrays]
        hvdlite.allreduce_async(results, name=name, op=op, prescale_factor=prescale, postscale_factor=postscale, compression=compressor).wait()
        return results

    def reduce(*given: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            if op not in (Average, Sum):
                raise SettingError(f"the gradient of an allreduce with op={op.name} is not defined; Average or Sum is expected; use tf.stop_gradient first")
            return _reduced(upstream, op, prescale, postscale, None, None)

        return _called(communicate, given, [(t.dtype, t.shape) for t in given]), gradient

    return list(tf.custom_gradient(reduce)(*tensors))


def _reduced_slices(slices: tf.IndexedSlices, op: ReduceOp, factor: float, name: str | None) -> tf.IndexedSlices:
    """Gather indices and values: the sum is what they mean together."""
    if op not in (Average, Sum):
        raise SettingError(f"IndexedSlices are reduced with op={op.name}; Average or Sum is expected; convert them with tf.convert_to_tensor")
    indices, values = grouped_allgather([slices.indices, slices.values], name)
    values *= tf.cast(factor / (hvdlite.size() if op is Average else 1), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


@plain_python
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None) -> tf.Tensor:
    """Concatenate the ranks' tensors along the first dimension, which may differ. Differentiable: this rank's rows get the mean over the ranks."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@plain_python
def grouped_allgather(tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None) -> list[tf.Tensor]:
    """Gather several tensors, all under way at once. See :func:`allgather`."""
    check_process_set(process_set)
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise SettingError(
                f"{name or 'the tensor'} is a scalar; allgather concatenates along the first dimension, so at least one is expected; reshape it to (1,)"
            )
    name = _name(name, "allgather")

    def communicate(*arrays: Array) -> list[Array]:
        handles = [hvdlite.allgather_async(np.array(a, order="C"), name=_part(name, i)) for i, a in enumerate(arrays)]
        found = [h.wait() for h in handles]
        rank = hvdlite.rank()
        return [whole for whole, _ in found] + [np.array([sum(lengths[:rank]), lengths[rank]], np.int64) for _, lengths in found]

    def gather(*given: tf.Tensor) -> Any:
        outputs = [(t.dtype, tf.TensorShape([None]).concatenate(t.shape[1:])) for t in given]
        results = _called(communicate, given, outputs + [(tf.int64, tf.TensorShape([2]))] * len(given))
        wholes, places = results[: len(given)], results[len(given) :]

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            means = _reduced([tf.convert_to_tensor(g) for g in upstream], Average, 1.0, 1.0, None, None)
            return [mean[place[0] : place[0] + place[1]] for mean, place in zip(means, places, strict=True)]

        return wholes, gradient

    return list(tf.custom_gradient(gather)(*tensors))


@plain_python
def gather_rows(vector: tf.Tensor) -> tf.Tensor:
    """The ranks' vectors of one length as the rows of a matrix. Every rank's loss depends on every row: the gradient is the sum over the ranks."""
    name = _name(None, "rows")
    shape = tf.TensorShape([hvdlite.size(), *vector.shape])

    def communicate(array: Array) -> list[Array]:
        return [hvdlite.allgather_async(np.array(array[np.newaxis], order="C"), name=name).wait()[0]]

    def gather(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _reduced([upstream], Sum, 1.0, 1.0, None, None)[0][hvdlite.rank()]

        return _called(communicate, [given], [(given.dtype, shape)])[0], gradient

    result: tf.Tensor = tf.custom_gradient(gather)(vector)
    return result


@plain_python
def broadcast(tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None) -> tf.Tensor:
    """A new tensor with the values of ``root_rank``. Differentiable: the root's input gets the mean of all gradients, the others' zero."""
    check_process_set(process_set)
    name = _name(name, "broadcast")

    def communicate(array: Array) -> list[Array]:
        result = np.array(array, order="C")
        hvdlite.broadcast_async([result], root_rank, name=name).wait()
        return [result]

    def send(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            (mean,) = _reduced([upstream], Average, 1.0, 1.0, None, None)
            return mean if hvdlite.rank() == root_rank else tf.zeros_like(mean)

        return _called(communicate, [given], [(given.dtype, given.shape)])[0], gradient

    result: tf.Tensor = tf.custom_gradient(send)(tf.convert_to_tensor(tensor))
    return result


@plain_python
def broadcast_(variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: Any = None) -> list[Any]:
    """Overwrite variables with those of ``root_rank``, all at once; returns them."""
    check_process_set(process_set)
    variables = list(variables)
    if not variables:
        return variables
    name = _name(name, "broadcast")
    labels = [str(getattr(v, "path", v.name)) for v in variables]

    def communicate(*arrays: Array) -> list[Array]:
        results = [np.array(a, order="C") for a in arrays]
        hvdlite.broadcast_async(results, root_rank, name=name, names=labels).wait()
        return results

    given = [tf.convert_to_tensor(v) for v in variables]
    for variable, value in zip(variables, _called(communicate, given, [(t.dtype, t.shape) for t in given]), strict=True):
        variable.assign(value)
    return variables


def _called(communicate: Callable[..., list[Array]], tensors: Sequence[tf.Tensor], outputs: Sequence[tuple[tf.DType, tf.TensorShape]]) -> list[tf.Tensor]:
    """Run on arrays: now, or whenever the graph that is being traced comes to it."""
    if not is_tracing():
        return [tf.constant(a) for a in communicate(*map(as_array, tensors))]
    refuse_xla("a collective")
    results = tf.numpy_function(communicate, tensors, [dtype for dtype, _ in outputs])
    return [tf.ensure_shape(r, shape) for r, (_, shape) in zip(results, outputs, strict=True)]


def _name(name: str | None, kind: str) -> str | None:
    """In a graph a call needs its name when it is traced; elsewhere the core counts."""
    return hvdlite.world().auto_name(kind) if name is None and is_tracing() else name


def _part(name: str | None, part: object) -> str | None:
    return None if name is None else f"{name}.{part}"


def check_process_set(process_set: Any) -> None:
    """Raise for anything but the set of all ranks.

    Raises:
        SettingError: another set is given.
    """
    if process_set is not None and getattr(process_set, "process_set_id", None) != 0:
        raise SettingError(f"process_set={process_set!r} given; this version of hvdlite has only the global set; leave it out")


def _number_op(number: Callable[[], int], name: str | None) -> tf.Tensor:
    with tf.name_scope(name or "hvdlite"):
        return tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32, stateful=False), ())


@plain_python
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of processes, when the graph runs."""
    return _number_op(hvdlite.size, name)


@plain_python
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of processes on this node, when the graph runs."""
    return _number_op(hvdlite.local_size, name)


@plain_python
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number, when the graph runs."""
    return _number_op(hvdlite.rank, name)


@plain_python
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number on its node, when the graph runs."""
    return _number_op(hvdlite.local_rank, name)
