"""DistributedOptimizer around every optimizer and compressor; where there is one, plain torch on everybody's batch is the judge."""

import gc

import pytest
import torch
from torch import nn
from torch_training import assert_equal_everywhere, assert_like, batches, build_model, distributed, flat, loss_of, residuals, train, train_alone

import hvdlite
import hvdlite.torch as hvd


def optimizers():
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)]
    return {k.__name__: k for k in kinds if k not in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)}


@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
def test_every_optimizer_of_torch_steps_as_alone(kind, rank, size):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8, bias=False, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 3, bias=False, dtype=torch.float64))

    def run(model, optimizer, whole):
        for step in range(5):
            x = batches(step, size).double()
            optimizer.zero_grad()
            model(x.flatten(0, 1) if whole else x[rank]).square().mean().backward()
            optimizer.step()
        return flat(model)

    model, alone = build(), build()
    optimizer = distributed(model, kind, lr=0.01)
    assert isinstance(optimizer, kind)
    assert type(optimizer).__name__ == kind.__name__
    start = flat(model)
    found, expected = run(model, optimizer, whole=False), run(alone, kind(alone.parameters(), lr=0.01), whole=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert not torch.equal(found, start)
    assert_equal_everywhere(model)


def test_lbfgs_is_refused():
    with pytest.raises(ValueError, match="LBFGS evaluates its closure many times a step"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(build_model().parameters()))


def test_an_optimizer_stays_the_same_object_with_its_state(rank, size):
    model = build_model()
    bare = torch.optim.Adam(model.parameters(), lr=0.01)
    train_alone(model, bare, range(3), size)
    kept = {p: bare.state[p]["exp_avg"].clone() for p in model.parameters()}
    optimizer = hvd.DistributedOptimizer(bare, named_parameters=model.named_parameters())
    assert optimizer is bare
    assert all(torch.equal(optimizer.state[p]["exp_avg"], m) for p, m in kept.items())
    alone = build_model()
    judge = torch.optim.Adam(alone.parameters(), lr=0.01)
    train_alone(alone, judge, range(6), size)
    train(model, optimizer, range(3, 6), rank, size)
    assert_like(model, alone)


def test_an_optimizer_wrapped_twice_exchanges_once(rank, size):
    model, alone = build_model(), build_model()
    optimizer = distributed(model, op=hvd.Sum, lr=0.01 / size)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    train(model, optimizer, range(3), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.01), range(3), size)
    assert_like(model, alone)


def test_hooks_of_an_optimizer_that_is_gone_do_nothing(rank, size):
    model, alone = build_model(), build_model()
    distributed(model, lr=1.0)
    gc.collect()
    loss_of(model, batches(0, size)[rank]).backward()
    assert not any(hvdlite.world().engine.channel._in_flight)
    model.zero_grad()
    train(model, distributed(model), range(2), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(2), size)
    assert_like(model, alone)


def test_parameters_without_names(rank, size):
    model, alone = build_model(), build_model()
    optimizer = distributed(model, names=False, compression="topk:density=0.1")
    train(model, optimizer, range(3), rank, size)
    assert_equal_everywhere(model)
    assert set(residuals(optimizer)) == ({"group.0.2"} if size > 1 else set())
    plain = build_model()
    train(plain, distributed(plain, names=False), range(3), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(3), size)
    assert_like(plain, alone)


def test_names_that_torch_knows_are_used(rank, size):
    model = build_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.named_parameters(), lr=0.05), compression="topk:density=0.1")
    train(model, optimizer, range(2), rank, size)
    assert set(residuals(optimizer)) == ({"2.weight"} if size > 1 else set())


def test_thousands_of_tiny_parameters_train(rank, size):
    parameters = [nn.Parameter(torch.full((2,), 1.0 + i % 3)) for i in range(3_000)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5))
    for _ in range(2):
        optimizer.zero_grad()
        (torch.cat([p for i, p in enumerate(parameters) if rank == 0 or i % 2]).sum() * (rank + 1)).backward()  # half of them unused, but on rank 0
        optimizer.step()
    mean = {True: sum(range(1, size + 1)) / size, False: 1 / size}
    assert all(torch.allclose(p, torch.full((2,), 1.0 + i % 3 - mean[bool(i % 2)])) for i, p in enumerate(parameters))


class Tenth:
    """A compressor written for Horovod, with an error no other has: it drops all but one decimal."""

    @staticmethod
    def compress(tensor):
        return (tensor * 10).round(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return (tensor / 10).to(ctx)


class Halves:
    """A compressor written for Horovod that sends half precision."""

    @staticmethod
    def compress(tensor):
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


@pytest.mark.parametrize("compression", [Tenth, Tenth()], ids=["class", "object"])
def test_a_users_horovod_compressor(compression, rank, size):
    model = build_model()
    optimizer = distributed(model, lr=1.0, compression=compression)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    if size == 1:
        return
    (sum(p.sum() for p in model.parameters()) * (0.1 * rank + 0.26)).backward()
    optimizer.step()
    mean = sum(round((0.1 * r + 0.26) * 10) for r in range(size)) / size / 10
    assert all(torch.allclose(p, torch.full_like(p, -mean)) for p in model.parameters())


def test_a_users_half_precision_compressor(rank, size):
    model = build_model()
    train(model, distributed(model, compression=Halves), range(3), rank, size)
    alone = build_model()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(3), size)
    torch.testing.assert_close(flat(model), flat(alone), atol=1e-3, rtol=1e-2)
    assert_equal_everywhere(model)
