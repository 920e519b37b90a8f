"""Keras on PyTorch: gradients are exchanged when the optimizer is given them; the bucket's memory is a tensor without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvdlite.torch.tensors import as_array, as_tensor, check, plain

from ..exchange import Exchange


class BackendExchange(Exchange):
    """Exchanges torch tensors."""

    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The means, as views of the buckets."""
        arrays: list[Any] = []
        for variable, gradient in zip(self.variables, gradients, strict=True):
            if gradient is None:
                arrays.append(None)
                continue
            dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
            check(dense, f"the gradient of {variable.path!r}")
            arrays.append(as_array(plain(dense)))
        means = self.reduce(arrays, lambda: (as_array(plain(v.value)) for v in self.variables))
        return [None if mean is None else as_tensor(mean) for mean in means]

    def all_finite(self, finite: Any) -> Any:
        """The agreement, as a tensor."""
        return torch.tensor(self.agree(bool(finite)))
