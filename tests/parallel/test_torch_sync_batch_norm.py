"""SyncBatchNorm on N ranks is BatchNorm in one process on the whole batch."""

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd

CHANNELS = 5


def whole_batch(size: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """What each rank gets: rank r has r + 2 samples."""
    generator = torch.Generator().manual_seed(7)
    return [3 + torch.randn(r + 2, CHANNELS, *shape, generator=generator, dtype=torch.float64) for r in range(size)]


def same(layer: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return layer.double()


@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("how", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5, "momentum": 0.3}], ids=str)
def test_ranks_together_do_what_one_process_does(shape, how, rank, size):
    judge_kind = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(shape)]
    judge, layer = same(judge_kind(CHANNELS, **how)), same(hvd.SyncBatchNorm(CHANNELS, **how))
    for step in range(2):
        parts = [(part + step).requires_grad_() for part in whole_batch(size, shape)]
        expected = judge(torch.cat(parts))
        mine = parts[rank].detach().clone().requires_grad_()
        result = layer(mine)
        first = sum(len(part) for part in parts[:rank])
        torch.testing.assert_close(result, expected[first : first + len(mine)])
        weights = torch.linspace(-1, 1, expected[0].numel(), dtype=torch.float64).reshape(expected[0].shape)
        (expected * expected * weights).sum().backward()
        (result * result * weights).sum().backward()
        torch.testing.assert_close(mine.grad, parts[rank].grad)
    for ours, theirs in zip(layer.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(hvd.allreduce(ours.grad, op=hvd.Sum), theirs.grad)
    torch.testing.assert_close(dict(layer.named_buffers()), dict(judge.named_buffers()))
    parts = whole_batch(size, shape)
    expected = judge.eval()(torch.cat(parts))
    torch.testing.assert_close(layer.eval()(parts[rank]), expected[first : first + len(parts[rank])])


def test_ranks_agree_bit_for_bit(rank):
    layer = hvd.SyncBatchNorm(CHANNELS)
    layer(torch.randn(3, CHANNELS, 4, generator=torch.Generator().manual_seed(rank)))
    state = [layer.running_mean.tolist(), layer.running_var.tolist()]
    assert all(theirs == state for theirs in hvd.allgather_object(state))


def test_large_means_cost_no_digits(rank, size):
    """A sum of squares would: 1e4 squared has no digits left for a variance of 1 in float32."""
    parts = [1e4 + torch.randn(50, 1, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    layer = hvd.SyncBatchNorm(1, affine=False)
    expected = torch.cat(parts).double().var(unbiased=True)
    layer(parts[rank])
    torch.testing.assert_close(layer.running_var.double(), 0.9 + 0.1 * expected[None], rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_inputs_are_normalized_in_float32(dtype, rank, size):
    parts = [part.to(dtype) for part in whole_batch(size, (6,))]
    result = hvd.SyncBatchNorm(CHANNELS)(parts[rank])
    expected = nn.BatchNorm1d(CHANNELS)(torch.cat(parts).float()).to(dtype)
    assert result.dtype == dtype
    first = sum(len(part) for part in parts[:rank])
    torch.testing.assert_close(result, expected[first : first + len(result)])


def test_a_rank_may_have_no_samples(rank, size, odd):
    given = torch.zeros(0 if odd else 4, CHANNELS, 3) + torch.arange(3.0)
    layer = hvd.SyncBatchNorm(CHANNELS)
    result = layer(given.requires_grad_())
    result.sum().backward()
    assert result.shape == given.shape
    torch.testing.assert_close(layer.running_mean, torch.full((CHANNELS,), 0.1))


def test_one_value_a_channel_has_no_variance(rank, size):
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        hvd.SyncBatchNorm(CHANNELS)(torch.ones(1 if rank == 0 else 0, CHANNELS))


def test_vectors_are_refused():
    with pytest.raises(ValueError, match=r"shape \(5,\); samples with channels"):
        hvd.SyncBatchNorm(CHANNELS)(torch.ones(CHANNELS))
