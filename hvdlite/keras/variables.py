"""Keras variables that ranks must share before they train, and the collectives on single values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import hvdlite
from hvdlite import Average, ReduceOp, SettingError, Sum
from hvdlite.agreement import unique_names

from .compression import Compression

_SEED = re.compile(r"(^|/)seed_generator_state(_\d+)?$")


def path_of(variable: Any) -> str:
    """The name of a Keras variable, or of a TensorFlow one: Keras's optimizers train both."""
    return str(getattr(variable, "path", variable.name)).removesuffix(":0")


def dtype_of(variable: Any) -> str:
    """The dtype's name, of either."""
    return str(getattr(variable.dtype, "name", variable.dtype))


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Overwrite ``keras.Variable`` objects with their values on ``root_rank``."""
    variables = list(variables)
    if not variables or hvdlite.size() == 1:
        return
    values = [as_numpy(v) for v in variables]
    hvdlite.broadcast_async(values, root_rank, name="keras.variables", names=unique_names(map(path_of, variables))).wait()
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def broadcast_model(model: Any, root_rank: int = 0, local_variables: Sequence[Any] = ()) -> None:
    """Give every rank the weights, the optimizer's state and the seeds of ``root_rank``; ``local_variables`` of the model stay as they are.

    A rank's distance from the root is added to each seed, so that dropout differs between ranks as it does between the halves of a batch.
    """
    local = set(map(id, local_variables))
    broadcast_variables([v for v in model.variables if id(v) not in local], root_rank)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        broadcast_variables(optimizer.variables, root_rank)
    offset = (hvdlite.rank() - root_rank) % hvdlite.size()
    for variable in model.variables:
        if offset and _SEED.search(variable.path):
            variable.assign(as_numpy(variable) + np.array([offset, 0], str(variable.dtype)))


def broadcast_global_variables(root_rank: int, model: Any = None) -> None:
    """Give every rank the variables of ``root_rank``. Keras 3 has no list of all variables, so they are those of ``model`` and its optimizer.

    Raises:
        SettingError: no model is given.
    """
    if model is None:
        raise SettingError(
            "broadcast_global_variables() without a model; Keras 3 knows no global variables; call broadcast_global_variables(root_rank, model), "
            "or add hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit's callbacks"
        )
    broadcast_model(model, root_rank)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Combine a number, array or tensor over the ranks; returns a tensor for a tensor, otherwise an array. Not for compiled functions."""
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    chosen = (Sum if average is False else Average) if op is None else ReduceOp(op)
    result = as_numpy(value)
    hvdlite.allreduce_async(
        [result], name=name, op=chosen, prescale_factor=prescale_factor, postscale_factor=postscale_factor, compression=Compression.resolve(compression)
    ).wait()
    return _like(value, result)


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the ranks' arrays or tensors along the first dimension, which may differ."""
    return _like(value, hvdlite.allgather(as_numpy(value), name=name))


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """Combine arrays or tensors over the ranks, and leave to each its rows; the first ranks get one more where they do not divide evenly."""
    return _like(value, hvdlite.reducescatter(as_numpy(value), name=name, op=ReduceOp(op)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The number, array or tensor of ``root_rank``."""
    return _like(value, hvdlite.broadcast(as_numpy(value), root_rank, name=name))


def as_numpy(value: Any) -> Any:
    """A contiguous copy."""
    if isinstance(value, keras.Variable):
        value = value.value
    if keras.ops.is_tensor(value):
        try:
            value = keras.ops.convert_to_numpy(value)
        except (NotImplementedError, TypeError, RuntimeError) as error:
            raise SettingError(
                f"{value!r} has no value while a function is being compiled; a value is expected; call it outside, or use the framework's own adapter "
                "(hvdlite.tensorflow) inside"
            ) from error
    return np.array(value, order="C")


def _like(value: Any, result: Any) -> Any:
    return keras.ops.convert_to_tensor(result) if keras.ops.is_tensor(value) else result
