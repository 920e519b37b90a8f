"""Copy a tensor from one rank to all."""

from __future__ import annotations

from typing import Any

import torch

import hvdlite
from hvdlite import Average

from ..tensors import borrowed, copied
from .allreduce import allreduce
from .handles import Handle


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Overwrite the tensor with that of ``root_rank``. The handle gives the same tensor."""
    array, write_back = borrowed(tensor, name)

    def finish(_: Any) -> torch.Tensor:
        write_back()
        return tensor

    return Handle(hvdlite.broadcast_async([array], root_rank, name=name), finish)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Copy the tensor of ``root_rank``. The handle gives a new tensor."""
    return broadcast_async_(copied(tensor, name), root_rank, name)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """A new tensor with the values of ``root_rank``. Differentiable."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name)  # type: ignore[no-untyped-call]
        return result
    copy: torch.Tensor = broadcast_async(tensor, root_rank, name).wait()
    return copy


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Overwrite the tensor with that of ``root_rank``."""
    result: torch.Tensor = broadcast_async_(tensor, root_rank, name).wait()
    return result


class _Broadcast(torch.autograd.Function):
    """Only the root's input matters: it receives the mean of all gradients, the others zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None) -> torch.Tensor:
        ctx.root_rank = root_rank
        result: torch.Tensor = broadcast_async(tensor, root_rank, name).wait()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        reduced = allreduce(gradient.contiguous(), op=Average)
        return (reduced if hvdlite.rank() == ctx.root_rank else reduced * 0), None, None
