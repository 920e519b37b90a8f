"""What the exchange must know of variables, TensorFlow's and Keras' alike: names, shapes, dtypes and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite import Parameter
from hvdlite.agreement import unique_names


def is_variable(source: Any) -> bool:
    """Whether this is a variable, and no tensor."""
    return callable(getattr(source, "assign", None))


def names_of(variables: Sequence[Any]) -> list[str]:
    """Unique names, the same on ranks that build the same model."""
    return unique_names(str(getattr(v, "path", v.name)).removesuffix(":0") for v in variables)


def dtype_of(tensor: Any) -> str:
    """What the core calls the dtype of a tensor or variable."""
    return str(np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype))


def parameters_of(variables: Sequence[Any], groups: Any = None) -> list[Parameter]:
    """The parameters of an exchange. ``groups``: see :func:`number_groups`."""
    group_of = number_groups(groups, variables)
    return [Parameter(name, tuple(v.shape), dtype_of(v), group_of.get(id(v))) for name, v in zip(names_of(variables), variables, strict=True)]


def number_groups(groups: Any, variables: Sequence[Any]) -> dict[int, int]:
    """Horovod's ``groups`` by id of the variable: an int splits them evenly, lists name them; those in no list travel in the usual buckets."""
    if groups is None or groups == 0:
        return {}
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        size, extra = divmod(len(variables), groups)
        bounds = [i * size + min(i, extra) for i in range(groups + 1)]
        return {id(v): number for number in range(groups) for v in variables[bounds[number] : bounds[number + 1]]}
    if not isinstance(groups, (list, tuple)) or not all(isinstance(g, (list, tuple)) for g in groups):
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
    numbered: dict[int, int] = {}
    for number, members in enumerate(groups):
        for v in members:
            if not is_variable(v):
                raise ValueError("groups must consist of tf.Variable.")
            if id(v) in numbered:
                raise ValueError("A variable can only appear once in groups.")
            numbered[id(v)] = number
    return numbered
