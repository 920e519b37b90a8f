"""Concatenate tensors of all ranks: one, or a group that is only complete together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hvdlite
from hvdlite import Average, ProcessSet, global_process_set

from ..tensors import as_array, as_tensor, check, plain
from .allreduce import grouped_allreduce
from .handles import Handle


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Concatenate the ranks' tensors along the first dimension, which may differ. The handle gives a new tensor."""
    return Handle(hvdlite.allgather_async(_given(tensor, name), name=name, process_set=process_set), lambda result: as_tensor(result[0]))


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension, which may differ. Differentiable."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        core = hvdlite.allgather_async(_given(tensor, name), name=name, process_set=process_set)
        gathered: torch.Tensor = _AllGather.apply(lambda: [core.wait()], process_set, tensor)[0]  # type: ignore[no-untyped-call]
        return gathered
    result: torch.Tensor = allgather_async(tensor, name, process_set).wait()
    return result


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Concatenate each of several tensors over the ranks, as one unit. The handle gives new tensors."""
    return Handle(_submit(tensors, name, process_set), lambda results: [as_tensor(whole) for whole, _ in results])


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Concatenate each of several tensors over the ranks, as one unit; returns new tensors. Differentiable."""
    tensors = list(tensors)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return list(_AllGather.apply(_submit(tensors, name, process_set).wait, process_set, *tensors))  # type: ignore[no-untyped-call]
    result: list[torch.Tensor] = grouped_allgather_async(tensors, name, process_set).wait()
    return result


def _submit(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> hvdlite.Handle:
    return hvdlite.grouped_allgather_async([_given(t, name) for t in tensors], name=name, process_set=process_set)


def _given(tensor: torch.Tensor, name: str | None) -> hvdlite.Array:
    check(tensor, name)
    return as_array(plain(tensor))


class _AllGather(torch.autograd.Function):
    """The gradient of this rank's rows is the mean over the ranks of their gradients, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, gather: Any, process_set: ProcessSet, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, place = gather(), hvdlite.world().channel(process_set).topology.rank
        ctx.process_set = process_set
        ctx.starts = [sum(lengths[:place]) for _, lengths in results]
        ctx.rows = [t.shape[0] for t in tensors]
        return tuple(as_tensor(whole) for whole, _ in results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        means = grouped_allreduce(gradients, op=Average, process_set=ctx.process_set)
        return None, None, *(mean.narrow(0, start, rows) for mean, start, rows in zip(means, ctx.starts, ctx.rows, strict=True))
