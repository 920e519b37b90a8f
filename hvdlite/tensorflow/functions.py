"""State that ranks must share before they train: variables, any object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import hvdlite
from hvdlite import ProcessSet, global_process_set

from .collectives import broadcast_
from .tensors import plain_python


@plain_python
def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False) -> None:
    """Overwrite variables with those of ``root_rank``, eagerly or in a graph.

    Args:
        variables: TensorFlow's or Keras' variables, such as ``model.variables`` or ``optimizer.variables``, in the same order on every rank.
        root_rank: the rank whose values everybody gets.
        process_set: the ranks that take part.
        inplace: ignored; the variables are always overwritten in place.
    """
    broadcast_(list(variables), root_rank, process_set=process_set)


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Any picklable object of ``root_rank``, on every rank. ``session`` is ignored."""
    return hvdlite.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Callable[[Any], Any]:
    """:func:`broadcast_object` with everything but the object filled in."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The ranks' objects, in the order of ranks. ``session`` is ignored."""
    return hvdlite.allgather_object(obj, name, process_set=process_set)
