"""Copy a tensor from one rank to all."""

from __future__ import annotations

from typing import Any

import torch

import hvdlite
from hvdlite import Average, ProcessSet, global_process_set

from ..tensors import borrowed, copied
from .allreduce import allreduce
from .handles import Handle


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Overwrite the tensor with that of ``root_rank``, a number among all ranks. The handle gives the same tensor."""
    array, write_back = borrowed(tensor, name)

    def finish(_: Any) -> torch.Tensor:
        write_back()
        return tensor

    return Handle(hvdlite.broadcast_async([array], root_rank, name=name, process_set=process_set), finish)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Copy the tensor of ``root_rank``. The handle gives a new tensor."""
    return broadcast_async_(copied(tensor, name), root_rank, name, process_set)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """A new tensor with the values of ``root_rank``. Differentiable."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return result
    copy: torch.Tensor = broadcast_async(tensor, root_rank, name, process_set).wait()
    return copy


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Overwrite the tensor with that of ``root_rank``."""
    result: torch.Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return result


class _Broadcast(torch.autograd.Function):
    """Only the root's input matters: it receives the mean of all gradients, the others zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        result: torch.Tensor = broadcast_async(tensor, root_rank, name, process_set).wait()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        reduced = allreduce(gradient.contiguous(), op=Average, process_set=ctx.process_set)
        return (reduced if hvdlite.rank() == ctx.root_rank else reduced * 0), None, None, None
