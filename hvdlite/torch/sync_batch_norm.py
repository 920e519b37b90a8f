"""``SyncBatchNorm``: batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

import hvdlite
from hvdlite import ProcessSet, SettingError, Sum, global_process_set

from .collectives import allgather, allreduce


class SyncBatchNorm(_BatchNorm):
    """Normalizes with the mean and variance of what all ranks got, as if it were one batch; ranks may get different numbers of samples, or none.

    It takes the arguments of ``torch.nn.BatchNorm2d`` and its place, for inputs of any number of dimensions from two. While it evaluates with
    the statistics it has tracked, and in a world of one, it is that. The gradients of its weight and bias are this rank's share of their sum,
    like those of any other layer.

    ``process_set``: the ranks whose batches count as one; on the others, and where there is one such rank, it is an ordinary layer.
    """

    process_set: ProcessSet = global_process_set

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        process_set: ProcessSet = global_process_set,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise SettingError(f"the input of SyncBatchNorm has shape {tuple(input.shape)}; samples with channels, (N, C, ...), are expected; add a dimension")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The input, normalized for each channel.

        Args:
            input: shape (N, C, ...); C is ``num_features``, the rest may differ from rank to rank.
        Raises:
            SettingError: the input has fewer than two dimensions.
            ValueError: all ranks together have one value a channel, whose variance is not defined.
        """
        self._check_input_dim(input)
        use_batch = self.training or self.running_mean is None
        channel = hvdlite.world().partners(self.process_set) if use_batch and hvdlite.is_initialized() else None
        if channel is None:
            return self._alone(input, use_batch=use_batch)
        name = channel.auto_name("sync_batch_norm")
        output, mean, var, count = _Normalize.apply(input, self.weight, self.bias, self.eps, name, self.process_set)  # type: ignore[no-untyped-call]
        if self.training and self.track_running_stats:
            self._follow(mean, var, int(count))
        return output  # type: ignore[no-any-return]

    def _alone(self, input: torch.Tensor, *, use_batch: bool) -> torch.Tensor:  # noqa: A002 - torch's name
        tracked = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if tracked else (None, None)
        momentum = self._next_momentum() if self.training and self.track_running_stats else 0.0
        return functional.batch_norm(input, mean, var, self.weight, self.bias, use_batch, momentum, self.eps)

    def _next_momentum(self) -> float:
        """Count this batch; the weight of its statistics. Without ``momentum``, all batches weigh the same."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _follow(self, mean: torch.Tensor, var: torch.Tensor, count: int) -> None:
        momentum = self._next_momentum()
        assert self.running_mean is not None
        assert self.running_var is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), momentum)


class _Normalize(torch.autograd.Function):
    """Statistics are combined from each rank's own (Chan et al. 1979), in the order of ranks, in float32 at least: no sum of squares loses its digits."""

    @staticmethod
    def forward(
        ctx: Any,
        given: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        x = given.to(_wide(given.dtype))
        mean, var, count = _statistics(x, name, process_set)
        if count < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(given.shape)} and {int(count)} over all ranks")
        inverse = (var + eps).rsqrt()
        normal = (x - _wise(mean, x)) * _wise(inverse, x)
        output = normal if weight is None else normal * _wise(weight.to(x.dtype), x)
        output = output if bias is None else output + _wise(bias.to(x.dtype), x)
        ctx.save_for_backward(normal, weight, inverse)
        ctx.how = (int(count), name, process_set)
        count_tensor = torch.tensor(int(count))
        ctx.mark_non_differentiable(mean, var, count_tensor)
        return output.to(given.dtype), mean, var, count_tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        normal, weight, inverse = ctx.saved_tensors
        count, name, process_set = ctx.how
        slope = gradient.to(normal.dtype)
        across = [d for d in range(slope.dim()) if d != 1]
        own_sum, own_product = slope.sum(across), (slope * normal).sum(across)
        total = allreduce(torch.stack([own_sum, own_product]), name=f"{name}.backward", op=Sum, process_set=process_set) / count
        scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
        given = (slope - _wise(total[0], slope) - normal * _wise(total[1], slope)) * _wise(scale, slope)
        own = (None, None) if weight is None else (own_product.to(weight.dtype), own_sum.to(weight.dtype))
        return given.to(gradient.dtype), *own, None, None, None


def _statistics(x: torch.Tensor, name: str, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and variance of each channel over all ranks, and the number of values in a channel."""
    channels = x.shape[1]
    rows = x.transpose(0, 1).reshape(channels, x.numel() // channels if channels else 0)
    count = rows.shape[1]
    mean = rows.mean(1) if count else x.new_zeros(channels)
    spread = (rows - mean[:, None]).square().sum(1)
    everyone = allgather(torch.cat([mean, spread, mean.new_tensor([count])]).to(torch.float64)[None], name=name, process_set=process_set)
    means, spreads, counts = everyone[:, :channels], everyone[:, channels:-1], everyone[:, -1:]
    total = float(counts.sum())
    whole_mean = (means * counts).sum(0) / max(total, 1.0)
    var = (spreads + counts * (means - whole_mean).square()).sum(0) / max(total, 1.0)
    return whole_mean.to(x.dtype), var.to(x.dtype), total


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _wise(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value a channel, in the shape that meets ``x``."""
    return channels.reshape(1, -1, *(1,) * (x.dim() - 2))
