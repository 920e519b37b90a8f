"""State that ranks must share before they train: variables, any object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

import hvdlite
from hvdlite import ProcessSet, global_process_set

from .collectives import broadcast_
from .tensors import is_for_session, is_tracing, plain_python


@plain_python
def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False) -> tf.Operation | None:
    """Overwrite variables with those of ``root_rank``: now, or when the graph runs; in a graph for a session, when it runs the returned operation.

    Args:
        variables: TensorFlow's or Keras' variables, such as ``model.variables`` or ``optimizer.variables``, in the same order on every rank.
        root_rank: the rank whose values everybody gets.
        process_set: the ranks that take part.
        inplace: ignored; the variables are always overwritten in place.
    """
    assigned = broadcast_(list(variables), root_rank, process_set=process_set)
    return tf.group(*assigned) if is_for_session() else None


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Any picklable object of ``root_rank``, on every rank. ``session`` is ignored."""
    return hvdlite.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Callable[[Any], Any]:
    """:func:`broadcast_object` with everything but the object filled in."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The ranks' objects, in the order of ranks. ``session`` is ignored."""
    return hvdlite.allgather_object(obj, name, process_set=process_set)


@plain_python
def join() -> tf.Tensor:
    """Say that this rank has no more data, and wait until all ranks have said so. The last one to say it, as a scalar.

    Ranks that go on communicate among themselves: means are those of the ranks that take part, compressed or not. A rank that has waited here has the
    weights of its last step; ``broadcast_variables(model.variables, root_rank=int(hvd.join()))`` gives all ranks those of the last one.
    """
    if is_tracing():
        return tf.ensure_shape(tf.numpy_function(lambda: np.int32(hvdlite.join()), [], tf.int32), ())
    return tf.constant(hvdlite.join())


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number is a power of two. Horovod's Adasum needs that; hvdlite's takes any number of ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether tensors on a GPU can be exchanged: False in this version of hvdlite. The arguments are Horovod's and ignored."""
    return False
