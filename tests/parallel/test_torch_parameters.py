"""Which parameters have a gradient: unused, frozen and added ones."""

import pytest
import torch
from torch import nn
from torch_training import Branches, assert_equal_everywhere, assert_like, batches, build_model, distributed, loss_of, residuals, train, train_alone

import hvdlite.torch as hvd


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_unused_parameters(kind, to_none, rank, size):
    """The left branch is used on rank 0 only, the right one everywhere in even steps and nowhere in odd ones, idle never."""
    model, alone = Branches(), Branches()
    options = {"weight_decay": 0.1}
    optimizer, judge = distributed(model, kind, options=options), kind(alone.parameters(), lr=0.05, **options)
    for step in range(6):
        x = batches(step, size)
        optimizer.zero_grad(set_to_none=to_none)
        model(x[rank], rank == 0, step % 2 == 0).square().mean().backward() if rank == 0 or step % 2 == 0 else None
        optimizer.step()
        judge.zero_grad(set_to_none=to_none)
        for r in range(size):
            if r == 0 or step % 2 == 0:
                (alone(x[r], r == 0, step % 2 == 0).square().mean() / size).backward()
        judge.step()
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
    assert_like(model, alone)
    assert all(p.grad is None for p in model.idle.parameters())
    assert_equal_everywhere(model)


@pytest.mark.parametrize("groups", [1, 2, "lists"])
def test_groups_with_unused_and_with_sparse_parameters(groups, rank, size):
    """A group is complete without those that have no gradient, on some ranks or on all, and without those whose gradient is sparse."""

    def build():
        torch.manual_seed(0)
        return nn.ModuleDict({"table": nn.Embedding(50, 4, sparse=True), "used": nn.Linear(4, 4), "some": nn.Linear(4, 1), "idle": nn.Linear(4, 1)})

    def loss(layers, r, step):
        hidden = layers["used"](layers["table"](torch.tensor([r, step, 40])))
        return (layers["some"](hidden) if r == 0 else hidden).square().mean()

    model, alone = build(), build()
    lists = [[model["table"].weight, model["some"].weight, model["idle"].weight], [model["used"].bias, model["some"].bias]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(optimizer, named, groups=lists if groups == "lists" else groups, gradient_predivide_factor=2.0)
    judge = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        judge.zero_grad()
        loss(model, rank, step).backward()
        (sum(loss(alone, r, step) for r in range(size)) / size).backward()
        optimizer.step()
        judge.step()
        assert model["idle"].weight.grad is None
        assert model["table"].weight.grad.is_sparse
    torch.testing.assert_close(model.state_dict(), alone.state_dict())


def test_a_rank_without_any_gradient_takes_part_in_every_step(rank, size):
    """Also when gradients are cleared behind the optimizer's back."""
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):
        x = batches(step, 1)[0]
        if rank == 0:
            loss_of(model, x).backward()
        optimizer.step()
        model.zero_grad()
        judge.zero_grad()
        (loss_of(alone, x) / size).backward()
        judge.step()
    assert_like(model, alone)


def test_what_is_owed_to_an_unused_parameter_is_delivered_not_lost(rank, size):
    """Used once, then never again: error feedback goes on sending the rest, until all of the gradient has arrived."""
    torch.manual_seed(0)
    layers = nn.ModuleDict({"a": nn.Linear(40, 40, bias=False), "b": nn.Linear(40, 40, bias=False)})
    start = layers["a"].weight.detach().clone()
    optimizer = distributed(layers, lr=1.0, compression="topk:density=0.2")
    x = torch.randn(size, 4, 40, generator=torch.Generator().manual_seed(1))
    for step in range(12):
        optimizer.zero_grad()
        (layers["a"](x[rank]).sum() if step == 0 else layers["b"](x[rank]).sum() * 1e-6).backward()
        optimizer.step()
    owed = hvd.allreduce(residuals(optimizer)["a.weight"]) if size > 1 else 0.0
    true = x.sum(1).mean(0).expand(40, 40)
    torch.testing.assert_close(start - layers["a"].weight.detach() + owed, true, atol=1e-5, rtol=1e-5)


def test_frozen_parameters_are_left_alone_and_may_be_unfrozen_at_any_moment(rank, size):
    """Unfrozen before zero_grad(), or between zero_grad() and backward(): the step is that of one process either way, for a sum too."""
    model, alone = build_model(), build_model()
    for m in (model, alone):
        m[0].requires_grad_(False)
        m[2].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    optimizer, judge = distributed(model, op=hvd.Sum, lr=0.05 / size), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(9):
        if step == 3:
            assert torch.equal(model[0].weight, frozen)
            model[0].requires_grad_(True)
            alone[0].requires_grad_(True)
        optimizer.zero_grad()
        judge.zero_grad()
        if step == 6:
            model[2].requires_grad_(True)
            alone[2].requires_grad_(True)
        loss_of(model, batches(step, size)[rank]).backward()
        optimizer.step()
        loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        judge.step()
        assert_like(model, alone)
    assert not torch.equal(model[0].weight, frozen)
    assert_equal_everywhere(model)


def test_a_parameter_frozen_later_stays_as_it_is(rank, size):
    model = build_model()
    optimizer = distributed(model)
    train(model, optimizer, range(2), rank, size)
    optimizer.zero_grad()
    model[0].requires_grad_(False)
    kept = model[0].weight.detach().clone()
    train(model, optimizer, range(2, 4), rank, size)
    assert torch.equal(model[0].weight, kept)
    assert_equal_everywhere(model)


@pytest.mark.parametrize("compression", ["none", "topk:density=0.1"])
def test_parameters_added_later(compression, rank, size):
    model, alone = build_model(), build_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[2].parameters(), lr=0.05), model.named_parameters(), compression=compression)
    judge = torch.optim.SGD(alone[2].parameters(), lr=0.05)
    train(model, optimizer, range(3), rank, size)
    train_alone(alone, judge, range(3), size)
    model.zero_grad()  # what nobody trains has gathered gradients, of this rank alone
    alone.zero_grad()
    owed = residuals(optimizer)
    optimizer.add_param_group({"params": list(model[0].parameters()) + list(model[4].parameters()), "lr": 0.02})
    judge.add_param_group({"params": list(alone[0].parameters()) + list(alone[4].parameters()), "lr": 0.02})
    kept = residuals(optimizer)
    assert kept.keys() == owed.keys()
    assert all(torch.equal(kept[name], r) for name, r in owed.items())
    assert bool(owed) == (size > 1 and compression != "none")
    train(model, optimizer, range(3, 6), rank, size)
    train_alone(alone, judge, range(3, 6), size)
    if compression == "none":
        assert_like(model, alone)
    assert_equal_everywhere(model)


def test_parameters_cannot_be_added_while_gradients_are_under_way(rank, size):
    if size == 1:
        return
    model, more = build_model(), nn.Linear(2, 2)
    optimizer = distributed(model)
    loss_of(model, batches(0, size)[rank]).backward()
    with pytest.raises(AssertionError, match="add them between steps"):
        optimizer._gradients.in_flight and optimizer._watch()
    optimizer.step()
    optimizer.add_param_group({"params": list(more.parameters())})
