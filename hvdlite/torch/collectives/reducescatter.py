"""Combine tensors over the ranks, and leave to each its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hvdlite
from hvdlite import Average, ProcessSet, ReduceOp, SettingError, Sum, global_process_set

from ..compression import Compression, is_horovod_compressor
from ..tensors import as_array, as_tensor, check, plain
from .allgather import grouped_allgather
from .handles import Handle


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Combine a tensor over the ranks, and leave to each its rows. The handle gives a new tensor."""
    check(tensor, name)
    given = as_array(plain(tensor))
    core = hvdlite.reducescatter_async(given, name=name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set)
    return Handle(core, as_tensor)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combine a tensor over the ranks, and leave to each its rows; returns a new tensor. Differentiable for Average and Sum.

    Args:
        tensor: the same shape and dtype on every rank, at least one dimension. Where its rows do not divide evenly, the first ranks get one more.
        name: identifies the call across ranks.
        compression: none, fp16, or a class with Horovod's ``compress`` and ``decompress``.
        op: Average, Sum, Min, Max or Product. 16-bit floats are summed in float32.
        process_set: the ranks that take part.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after it.
    """
    return _reduced([tensor], False, name, compression, op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Combine tensors over the ranks, and leave to each its rows of each, as one unit. The handle gives new tensors."""
    for tensor in tensors:
        check(tensor, name)
    core = hvdlite.grouped_reducescatter_async(
        [as_array(plain(t)) for t in tensors], name=name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set
    )
    return Handle(core, lambda arrays: [as_tensor(a) for a in arrays])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Combine tensors over the ranks, and leave to each its rows of each, as one unit. Differentiable for Average and Sum."""
    return _reduced(list(tensors), True, name, compression, op, process_set, prescale_factor, postscale_factor)


def _reduced(
    tensors: Sequence[torch.Tensor], grouped: bool, name: str | None, compression: Any, op: ReduceOp, process_set: ProcessSet, prescale: float, postscale: float
) -> list[torch.Tensor]:
    methods, op = _methods(compression), ReduceOp(op)
    small, contexts = zip(*(methods.compress(t) for t in tensors), strict=True) if tensors else ((), ())
    if torch.is_grad_enabled() and any(t.requires_grad for t in small):
        shares = _ReduceScatter.apply(grouped, name, op, process_set, prescale, postscale, *small)  # type: ignore[no-untyped-call]
    else:
        shares = _shares(grouped, name, op, process_set, prescale, postscale, small)
    return [methods.decompress(share, context) for share, context in zip(shares, contexts, strict=True)]


def _shares(
    grouped: bool, name: str | None, op: ReduceOp, process_set: ProcessSet, prescale: float, postscale: float, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    if not grouped:
        return [reducescatter_async(tensors[0], name, op, process_set, prescale, postscale).wait()]
    result: list[torch.Tensor] = grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale).wait()
    return result


def _methods(compression: Any) -> Any:
    """What to call before and after: shares are combined as they arrive, so only another dtype can compress them."""
    if is_horovod_compressor(compression):
        return compression
    resolved = Compression.resolve(compression)
    if resolved is None:
        return Compression.none
    if resolved.spec == Compression.fp16.spec:
        return Compression.fp16
    raise SettingError(
        f"compression={resolved.spec} cannot compress a reducescatter; none, fp16, or a class with compress and decompress is expected; "
        "use allreduce for the others"
    )


class _ReduceScatter(torch.autograd.Function):
    """Every rank is sent the gradients of all shares; with Sum they count as often as there are ranks, as in Horovod."""

    @staticmethod
    def forward(
        ctx: Any, grouped: bool, name: str | None, op: ReduceOp, process_set: ProcessSet, prescale: float, postscale: float, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        num_ranks = hvdlite.world().channel(process_set).topology.size
        ctx.op, ctx.process_set, ctx.factor = op, process_set, prescale * postscale * (num_ranks if op is Sum else 1)
        return tuple(_shares(grouped, name, op, process_set, prescale, postscale, tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        if ctx.op not in (Average, Sum):
            raise SettingError(f"the gradient of a reducescatter with op={ctx.op.name} is not defined; Average or Sum is expected; detach the tensor first")
        return (None,) * 6 + tuple(whole * ctx.factor for whole in grouped_allgather(gradients, process_set=ctx.process_set))
