"""State that ranks must share before they train: parameters, optimizer state, any object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

import hvdlite
from hvdlite import ProcessSet, global_process_set

from .tensors import borrowed

allgather_object = hvdlite.allgather_object
broadcast_object = hvdlite.broadcast_object


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks have said so. Returns the last one to say it.

    Ranks that go on communicate among themselves: means are those of the ranks that take part, compressed or not, and rows come from them and go to
    them alone. A rank that has waited here has the weights of its last step; ``broadcast_parameters(model.state_dict(), root_rank=hvd.join())``
    gives all ranks those of the last one, and ``broadcast_optimizer_state`` what its optimizer keeps.

    Args:
        device: ignored.
    """
    return hvdlite.join()


def broadcast_parameters(params: Any, root_rank: int, *, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite parameters with those of ``root_rank``, in place.

    Args:
        params: ``model.state_dict()``, or any iterable of tensors or ``(name, tensor)`` pairs, ``model.named_parameters()`` included.
        root_rank: the rank whose values everybody gets.
        process_set: the ranks that take part; the others keep theirs, and do not call this.
    """
    named = [(name, tensor) for name, tensor in _named(params) if isinstance(tensor, torch.Tensor)]
    if not named:
        return
    pairs = [borrowed(tensor.data, name) for name, tensor in named]
    hvdlite.broadcast_async([array for array, _ in pairs], root_rank, names=[name for name, _ in named], process_set=process_set).wait()
    for _, write_back in pairs:
        write_back()


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"invalid params of type: {type(params)}")
    return [item if isinstance(item, tuple) else (f"parameter.{i}", item) for i, item in enumerate(params)]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None, *, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank the optimizer state and options of ``root_rank``.

    No step is taken to create state, so no weight changes: ranks without state receive it. As in Horovod, what is trained has a gradient
    afterwards: zero, where the optimizer has not stepped yet and there was none.

    Raises:
        ValueError: LBFGS, whose state cannot be broadcast.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    tensors: list[torch.Tensor] = []
    state = optimizer.state_dict()
    skeleton = _without_tensors({"state": state["state"], "param_groups": state["param_groups"]}, tensors)
    skeleton, layout = hvdlite.broadcast_object((skeleton, [(tuple(t.shape), t.dtype) for t in tensors]), root_rank, "optimizer_state", process_set)
    if hvdlite.rank() != root_rank:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in layout]
    if tensors:
        broadcast_parameters([(f"optimizer_state.{i}", t) for i, t in enumerate(tensors)], root_rank, process_set=process_set)
    if not optimizer.state and not isinstance(optimizer, torch.optim.SparseAdam):  # which takes no dense gradients
        for p in [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.grad is None]:
            p.grad = torch.zeros_like(p)
    if hvdlite.rank() != root_rank:
        optimizer.load_state_dict(_with_tensors(skeleton, tensors))


class _Slot:
    """Stands for the i-th tensor."""

    def __init__(self, index: int):
        self.index = index


def _without_tensors(value: Any, found: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        found.append(value)
        return _Slot(len(found) - 1)
    if isinstance(value, dict):
        return {k: _without_tensors(v, found) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(v, found) for v in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.index]
    if isinstance(value, dict):
        return {k: _with_tensors(v, tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(v, tensors) for v in value)
    return value
