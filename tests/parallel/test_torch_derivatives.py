"""Derivatives of the collectives: the loss is the sum over the ranks of each rank's own, except where Horovod averages."""

import pytest
import torch
from torch_values import values

import hvdlite.torch as hvd


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.name)
def test_the_gradient_of_allreduce_is_the_allreduce_of_the_gradient(op, rank, size):
    leaf = values(torch.float64, rank).requires_grad_()
    weight = values(torch.float64, rank + 50)
    (hvd.allreduce(leaf, op=op) * weight).sum().backward()
    everyone = torch.stack([values(torch.float64, r + 50) for r in range(size)])
    torch.testing.assert_close(leaf.grad, everyone.mean(0) if op is hvd.Average else everyone.sum(0))


def test_the_gradient_of_allreduce_follows_its_factors(rank, size):
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((3,), 1.5 * size, dtype=torch.float64))


def test_the_gradient_of_a_group_reaches_each_member(rank, size):
    leaves = [torch.ones(2, requires_grad=True), torch.ones(3), torch.ones(4, requires_grad=True)]
    first, _, last = hvd.grouped_allreduce(leaves, op=hvd.Sum)
    (first.sum() * (rank + 1) + last.sum()).backward()
    assert torch.equal(leaves[0].grad, torch.full((2,), float(sum(range(1, size + 1)))))
    assert leaves[1].grad is None
    assert torch.equal(leaves[2].grad, torch.full((4,), float(size)))


def test_the_gradient_of_a_minimum_is_refused(size):
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="op=Min is not defined"):
        hvd.allreduce(leaf, op=hvd.Min).sum().backward()


def test_the_gradient_of_allgather_is_the_mean_for_ones_own_rows(rank, size):
    leaf = values(torch.float64, rank, (rank + 1, 2)).requires_grad_()
    rows = size * (size + 1) // 2
    weight = values(torch.float64, rank + 50, (rows, 2))
    (hvd.allgather(leaf) * weight).sum().backward()
    mean = torch.stack([values(torch.float64, r + 50, (rows, 2)) for r in range(size)]).mean(0)
    start = rank * (rank + 1) // 2
    torch.testing.assert_close(leaf.grad, mean[start : start + rank + 1])


def test_the_gradient_of_broadcast_goes_to_the_root(rank, size):
    leaf = values(torch.float64, rank).requires_grad_()
    weight = values(torch.float64, rank + 50)
    (hvd.broadcast(leaf, size - 1) * weight).sum().backward()
    mean = torch.stack([values(torch.float64, r + 50) for r in range(size)]).mean(0)
    torch.testing.assert_close(leaf.grad, mean if rank == size - 1 else torch.zeros_like(mean))


def test_without_grad_mode_nothing_is_recorded(rank):
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(leaf).requires_grad
        assert not hvd.allgather(leaf).requires_grad
        assert not hvd.broadcast(leaf, 0).requires_grad
        assert not hvd.reducescatter(leaf).requires_grad
        assert not hvd.alltoall(leaf.repeat(hvd.size())).requires_grad
        assert not hvd.grouped_allgather([leaf])[0].requires_grad


def test_the_gradient_of_a_group_of_gathers_reaches_each_member(rank, size):
    leaves = [values(torch.float64, rank, (rank + 1, 2)).requires_grad_(), torch.ones(2), torch.ones(3, requires_grad=True)]
    first, _, last = hvd.grouped_allgather(leaves)
    (first.sum() * (rank + 1) + last[3 * rank : 3 * rank + 3].sum() * size).backward()
    assert torch.equal(leaves[0].grad, torch.full((rank + 1, 2), (size + 1) / 2, dtype=torch.float64))
    assert leaves[1].grad is None
    assert torch.equal(leaves[2].grad, torch.ones(3))


@pytest.mark.parametrize("with_splits", [True, False])
def test_the_gradient_of_alltoall_goes_back_where_the_rows_came_from(with_splits, rank, size):
    """The loss of rank r weighs each row with r + 1, so a row's gradient tells where it went."""
    splits = [(rank + r) % 3 if with_splits else 2 for r in range(size)]
    leaf = values(torch.float64, rank, (sum(splits), 2)).requires_grad_()
    received = hvd.alltoall(leaf, torch.tensor(splits, dtype=torch.int32))[0] if with_splits else hvd.alltoall(leaf)
    (received * (rank + 1)).sum().backward()
    assert torch.equal(leaf.grad, torch.repeat_interleave(torch.arange(1.0, size + 1, dtype=torch.float64), torch.tensor(splits))[:, None].expand(-1, 2))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.name)
@pytest.mark.parametrize("grouped", [False, True])
def test_the_gradient_of_reducescatter_is_that_of_all_shares(op, grouped, rank, size):
    """As Horovod defines it: the shares' gradients one after the other, times the number of ranks for a sum."""
    rows = 2 * size + 1
    leaf = values(torch.float64, rank, (rows, 2)).requires_grad_()
    how = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
    share = hvd.grouped_reducescatter([leaf], **how)[0] if grouped else hvd.reducescatter(leaf, **how)
    assert share.shape == (2 + (rank == 0), 2)
    (share * (rank + 1)).sum().backward()
    owner = torch.repeat_interleave(torch.arange(1.0, size + 1, dtype=torch.float64), torch.tensor([3] + [2] * (size - 1)))
    assert torch.equal(leaf.grad, 1.5 * (size if op is hvd.Sum else 1) * owner[:, None].expand(-1, 2))


def test_the_gradient_of_a_reducescatter_for_the_minimum_is_refused():
    leaf = torch.ones(4, requires_grad=True)
    with pytest.raises(ValueError, match="reducescatter with op=Min is not defined"):
        hvd.reducescatter(leaf, op=hvd.Min).sum().backward()


def test_second_derivatives_go_through_allreduce(rank, size):
    """The mean m of the ranks' x; d/dx of m**3 is 3 m**2, of which every rank's derivative is 6 m."""
    leaf = torch.tensor([float(rank + 1)], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad((hvd.allreduce(leaf) ** 3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    mean = (size + 1) / 2
    torch.testing.assert_close(first, torch.tensor([3 * mean**2], dtype=torch.float64))
    torch.testing.assert_close(second, torch.tensor([6 * mean], dtype=torch.float64))
