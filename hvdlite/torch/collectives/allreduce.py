"""Combine tensors over the ranks: one, or a group that is only complete together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hvdlite
from hvdlite import Average, ProcessSet, ReduceOp, SettingError, Sum, global_process_set

from ..compression import Compression, is_horovod_compressor
from ..tensors import borrowed, copied
from .handles import Handle


def _op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else ReduceOp(op)


def _submit(
    arrays: Sequence[Any], name: str | None, op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet, compression: Any
) -> hvdlite.Handle:
    compressor = Compression.resolve(compression)
    return hvdlite.allreduce_async(
        arrays, name=name, op=op, prescale_factor=prescale, postscale_factor=postscale, compression=compressor, process_set=process_set
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Any = None,
) -> Handle:
    """Combine tensors over the ranks in place, as one unit. The handle gives the same tensors."""
    tensors = list(tensors)
    pairs = [borrowed(t, name) for t in tensors]

    def finish(_: Any) -> list[torch.Tensor]:
        for _, write_back in pairs:
            write_back()
        return tensors

    return Handle(_submit([a for a, _ in pairs], name, _op(average, op), prescale_factor, postscale_factor, process_set, compression), finish)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Any = None,
) -> Handle:
    """Combine tensors over the ranks, as one unit. The handle gives new tensors."""
    copies = [copied(t, name) for t in tensors]
    return grouped_allreduce_async_(copies, average, name, op, prescale_factor, postscale_factor, process_set, compression=compression)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Combine tensors over the ranks, as one unit; returns new tensors. Differentiable for Average and Sum."""
    if is_horovod_compressor(compression):
        how = (compression, op, prescale_factor, postscale_factor, process_set)
        return [allreduce(t, average, None if name is None else f"{name}.{i}", *how) for i, t in enumerate(tensors)]
    chosen = _op(average, op)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return list(_AllReduce.apply(name, chosen, prescale_factor, postscale_factor, process_set, compression, *tensors))  # type: ignore[no-untyped-call]
    handle = grouped_allreduce_async(tensors, None, name, chosen, prescale_factor, postscale_factor, process_set, compression=compression)
    result: list[torch.Tensor] = handle.wait()
    return result


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Combine tensors over the ranks in place, as one unit."""
    result: list[torch.Tensor] = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()
    return result


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Any = None,
) -> Handle:
    """Combine a tensor over the ranks in place. The handle gives the same tensor."""
    array, write_back = borrowed(tensor, name)

    def finish(_: Any) -> torch.Tensor:
        write_back()
        return tensor

    return Handle(_submit([array], name, _op(average, op), prescale_factor, postscale_factor, process_set, compression), finish)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Any = None,
) -> Handle:
    """Combine a tensor over the ranks. The handle gives a new tensor."""
    return allreduce_async_(copied(tensor, name), average, name, op, prescale_factor, postscale_factor, process_set, compression=compression)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine a tensor over the ranks; returns a new tensor. Differentiable for Average and Sum.

    Args:
        tensor: any shape and dtype, the same on every rank; need not be contiguous.
        average: deprecated form of ``op``.
        name: identifies the tensor across ranks; without it, the n-th unnamed call of every rank belongs together.
        compression: a spec such as ``"fp16"``, ``Compression.x``, or a class with Horovod's ``compress`` and ``decompress``.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
        process_set: the ranks that take part.
    """
    if is_horovod_compressor(compression):
        small, context = compression.compress(tensor)
        result: torch.Tensor = compression.decompress(allreduce(small, average, name, None, op, prescale_factor, postscale_factor, process_set), context)
        return result
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set)[0]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine a tensor over the ranks in place."""
    result: torch.Tensor = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()
    return result


class _AllReduce(torch.autograd.Function):
    """Every rank's loss depends on every rank's input: the gradient is reduced the same way."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet, compression: Any, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = (op, prescale, postscale, process_set)
        return tuple(grouped_allreduce_async(tensors, None, name, op, prescale, postscale, process_set, compression=compression).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        op = ctx.how[0]
        if op not in (Average, Sum):
            raise SettingError(f"the gradient of an allreduce with op={op.name} is not defined; Average or Sum is expected; detach the tensor first")
        return (None,) * 6 + tuple(grouped_allreduce(gradients, None, None, None, *ctx.how))
