"""Gradients that stay sparse: those of embeddings with ``sparse=True``. They travel as positions and values when the step needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

import hvdlite
from hvdlite import ProcessSet, ReduceOp

from .collectives import sparse_allreduce_async


def agree_on_sparse(sparse: Mapping[str, int], dense: Iterable[str], name: str, process_set: ProcessSet) -> dict[str, int]:
    """Which gradients are sparse on some rank and dense on none, each with its number of sparse dimensions; the same on every rank.

    Args:
        sparse: of each gradient that is sparse on this rank, the number of sparse dimensions.
        dense: the gradients that are dense on this rank. Those that are not there at all are in neither.
        name: of the exchange.
        process_set: the ranks that take part.
    """
    everyone = hvdlite.allgather_object((dict(sparse), list(dense)), name, process_set=process_set)
    dimensions = {gradient: dim for theirs, _ in reversed(everyone) for gradient, dim in theirs.items()}
    for _, theirs in everyone:
        for gradient in theirs:
            dimensions.pop(gradient, None)
    return dimensions


def exchange_sparse(gradients: Mapping[torch.Tensor, tuple[str, int]], op: ReduceOp, process_set: ProcessSet) -> None:
    """Replace the gradient of each parameter by the ranks' mean or sum. A rank without a gradient counts as zero; without one on every rank there is none.

    Args:
        gradients: parameter -> the exchange's name, and the number of sparse dimensions.
        op: Average or Sum.
        process_set: the ranks that take part.
    """
    handles = {p: sparse_allreduce_async(_as_sparse(p, dimensions), name, op, process_set) for p, (name, dimensions) in gradients.items()}
    for parameter, handle in handles.items():
        total = handle()
        parameter.grad = total if total._nnz() or parameter.grad is not None else None


def _as_sparse(parameter: torch.Tensor, dimensions: int) -> torch.Tensor:
    gradient, shape = parameter.grad, parameter.shape
    if gradient is None:
        nowhere, nothing = torch.zeros(dimensions, 0, dtype=torch.int64), parameter.new_zeros(0, *shape[dimensions:])
        return torch.sparse_coo_tensor(nowhere, nothing.detach(), shape, check_invariants=False)
    return gradient if gradient.layout is torch.sparse_coo else gradient.to_sparse(dimensions)
