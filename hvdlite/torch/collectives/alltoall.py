"""Send rows of a tensor to each rank, and receive some from each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hvdlite
from hvdlite import ProcessSet, global_process_set

from ..tensors import as_array, as_tensor, check, plain
from .handles import Handle


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Send consecutive rows to each rank. The handle gives what :func:`alltoall` returns."""
    core = _submit(tensor, splits, name, process_set)
    return Handle(core, lambda result: _received(result) if splits is not None else _received(result)[0])


def alltoall(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send consecutive rows to each rank, and receive theirs in the order of ranks. Differentiable.

    Args:
        tensor: at least one dimension; all but the first are the same on every rank.
        splits: whole numbers of rows for each rank, together as many as there are; without it, equally many for each.
        name: identifies the call across ranks.
        process_set: the ranks that take part; splits are for each of them.
    Returns:
        A new tensor; with ``splits``, also how many rows came from each rank, int32.
    Raises:
        SettingError: the splits do not fit the tensor or the number of ranks.
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        received, lengths = _AllToAll.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    else:
        received, lengths = _received(_submit(tensor, splits, name, process_set).wait())
    return received if splits is None else (received, lengths)


def _submit(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet) -> hvdlite.Handle:
    check(tensor, name)
    numbers = as_array(plain(splits)) if isinstance(splits, torch.Tensor) else splits
    return hvdlite.alltoall_async(as_array(plain(tensor)), numbers, name=name, process_set=process_set)


def _received(result: tuple[hvdlite.Array, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return as_tensor(result[0]), torch.tensor(result[1], dtype=torch.int32)


class _AllToAll(torch.autograd.Function):
    """Gradients go back where the rows came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor]:
        received, ctx.lengths = _received(_submit(tensor, splits, name, process_set).wait())
        ctx.process_set = process_set
        ctx.mark_non_differentiable(ctx.lengths)
        return received, ctx.lengths

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
        returned, _ = alltoall(gradient, ctx.lengths, process_set=ctx.process_set)
        return returned, None, None, None
