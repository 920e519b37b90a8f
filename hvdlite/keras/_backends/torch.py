"""Keras on PyTorch: gradients are exchanged when the optimizer is given them, or during the backward pass where nobody else sees them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from hvdlite import Array, SettingError
from hvdlite.torch.tensors import as_array, as_tensor, check, plain

from ..exchange import Exchange, Options


class BackendExchange(Exchange):
    """Exchanges torch tensors; the means are views of the buckets."""

    def __init__(self, variables: Sequence[Any], options: Options):
        super().__init__(variables, options)
        self._hooks: list[Any] = []
        self._handed: dict[int, tuple[torch.Tensor, int]] = {}
        """Gradients that are under way, and their versions when they were handed over."""

    def watch(self, *, overlap: bool) -> None:
        """Also take gradients from the backward pass, if they may be taken."""
        super().watch(overlap=overlap)
        if overlap and self.options.passes == 1 and not self._hooks:
            this = weakref.ref(self)  # the parameters outlive this object
            self._hooks = [v.value.register_post_accumulate_grad_hook(partial(_take, this, i)) for i, v in enumerate(self.variables) if v.value.requires_grad]

    def unwatch(self) -> None:
        """Leave the backward pass alone."""
        super().unwatch()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def take(self, i: int, gradient: torch.Tensor) -> None:
        """The backward pass has made the gradient of the i-th variable."""
        if i in self._handed:
            raise SettingError(
                f"the gradient of {self.variables[i].path!r} came twice in one step; one backward pass a step is expected in fit; "
                "call backward() of your own in a train_step of your own"
            )
        if not self._handed:
            self.begin(self._weights)
        self._handed[i] = gradient, gradient._version
        self.hand_over(i, self._array(i, gradient))

    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The means over the ranks."""
        if not self._handed:
            arrays = [None if g is None else self._array(i, g) for i, g in enumerate(gradients)]
            means = self.reduce(arrays, self._weights)
        else:
            handed, self._handed = self._handed, {}
            for i, gradient in enumerate(gradients):
                if i in handed and (handed[i][0] is not gradient or gradient._version != handed[i][1]):
                    raise SettingError(
                        f"the gradient of {self.variables[i].path!r} was changed while it was being exchanged; it must reach the optimizer as the backward "
                        "pass left it; clip with the optimizer's clipnorm, or in a train_step of your own"
                    )
                if i not in handed and gradient is not None:
                    self.hand_over(i, self._array(i, gradient))
            means = self.collect()
        return [None if mean is None else as_tensor(mean) for mean in means]

    def all_finite(self, finite: Any) -> Any:
        """The agreement, as a tensor."""
        return torch.tensor(self.agree(bool(finite)))

    def _array(self, i: int, gradient: torch.Tensor) -> Array:
        dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
        check(dense, f"the gradient of {self.variables[i].path!r}")
        return as_array(plain(dense))

    def _weights(self) -> list[Array]:
        return [as_array(plain(v.value)) for v in self.variables]


def _take(exchange: weakref.ref[BackendExchange], i: int, parameter: torch.Tensor) -> None:
    watcher = exchange()
    if watcher is not None and parameter.grad is not None:
        watcher.take(i, parameter.grad)
