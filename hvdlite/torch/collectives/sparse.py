"""Sum sparse tensors over the ranks."""

from __future__ import annotations

from typing import Any

import torch

import hvdlite
from hvdlite import Average, ProcessSet, ReduceOp, SettingError, Sum, global_process_set
from hvdlite.errors import UnsupportedError

from ..tensors import as_array, as_tensor
from .handles import Handle

_NARROW = (torch.float16, torch.bfloat16)


class SparseHandle(Handle):
    """Gives the result when it is called, as in Horovod, or waited for."""

    def __call__(self) -> torch.Tensor:
        """The result; raises what went wrong."""
        result: torch.Tensor = self.wait()
        return result


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
) -> SparseHandle:
    """Sum or average a sparse tensor over the ranks; positions where a rank has nothing count as zero.

    Each rank adds up its own duplicates first, then all gather positions and values. 16-bit floats are summed in float32.

    Args:
        tensor: in COO layout, on the CPU; the same shape and dtype on every rank, with any number of entries.
        name: identifies the tensor across ranks.
        op: Average (default) or Sum.
        process_set: the ranks that take part.
    Returns:
        A handle: call it, or :func:`synchronize` it, for a new coalesced tensor.
    """
    op = Average if op is None else ReduceOp(op)
    if op not in (Average, Sum):
        raise UnsupportedError(f"op={op.name} of a sparse tensor has no meaning where ranks have no entry; Average or Sum is expected; call to_dense() first")
    if tensor.layout is not torch.sparse_coo or tensor.device.type != "cpu":
        raise SettingError(
            f"{name or 'the tensor'} is {tensor.layout} on {tensor.device}; a tensor in torch.sparse_coo on the CPU is expected; "
            "use allreduce for dense tensors, and to_sparse() for other layouts"
        )
    if tensor.dtype is torch.bool:
        raise SettingError(
            f"{name or 'the tensor'} is boolean, and op={op.name} of booleans has no meaning; numbers are expected; convert it to an integer type"
        )
    mine = _coalesced(tensor.detach())
    shape, dtype = mine.shape, mine.dtype
    arrays = [as_array(mine.indices().t().contiguous()), as_array(mine.values().resolve_conj().resolve_neg().contiguous())]
    names = [f"indices in shape {tuple(shape)}", "values"]
    core = hvdlite.grouped_allgather_async(arrays, name=name, names=names, process_set=process_set)

    def finish(result: Any) -> torch.Tensor:
        (indices, _), (values, _) = result
        total = _coalesced(torch.sparse_coo_tensor(as_tensor(indices).t(), as_tensor(values), shape, check_invariants=False), wide=True)
        if op is Average:
            is_whole = not (dtype.is_floating_point or dtype.is_complex)
            mean = total.values().div(core.num_ranks, rounding_mode="trunc" if is_whole else None)
            total = torch.sparse_coo_tensor(total.indices(), mean, shape, is_coalesced=True, check_invariants=False)
        return total.to(dtype)

    return SparseHandle(core, finish)


def _coalesced(tensor: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
    """Duplicates added up, those of 16-bit floats in float32; ``wide`` leaves them there."""
    if tensor.dtype not in _NARROW:
        return tensor.coalesce()
    total = tensor.to(torch.float32).coalesce()
    return total if wide else total.to(tensor.dtype)
