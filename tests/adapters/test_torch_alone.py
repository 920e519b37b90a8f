"""In a world of one, a DistributedOptimizer is the bare optimizer: the same bits, whatever it is told about communication."""

import warnings

import pytest
import torch

import hvdlite
import hvdlite.torch as hvd


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    monkeypatch.setenv("HVDLITE_TRANSPORT", "local")
    hvd.init()
    yield
    hvd.shutdown()


def optimizers():
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)]
    return {k.__name__: k for k in kinds if k not in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)}


def build_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 40, bias=False), torch.nn.Tanh(), torch.nn.Linear(40, 40, bias=False))


def run(model, optimizer):
    for step in range(5):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


HOW = {
    "plain": {},
    "topk": {"compression": "topk:density=0.1"},
    "fp16": {"compression": hvd.Compression.fp16},
    "passes": {"backward_passes_per_step": 4},
    "predivide": {"gradient_predivide_factor": 3.0},
    "groups": {"groups": 2},
    "sum": {"op": hvd.Sum},
}


def test_names_lie_where_horovods_scripts_look():
    model = build_model()
    named = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    assert named._parameter_names == {p: name for name, p in model.named_parameters()}
    unnamed = hvd.DistributedOptimizer(torch.optim.SGD(build_model().parameters(), lr=0.1))
    assert sorted(unnamed._parameter_names.values()) == ["group.0.0", "group.0.1"]


@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_alone_it_is_the_bare_optimizer(how, kind):
    model, bare = build_model(), build_model()
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.01), model.named_parameters(), **how)
    judge = kind(bare.parameters(), lr=0.01)
    assert torch.equal(run(model, optimizer), run(bare, judge))
    mine, theirs = optimizer.state_dict(), judge.state_dict()
    assert mine.keys() == theirs.keys()
    assert mine["param_groups"] == theirs["param_groups"]


def test_options_are_checked_alone_too():
    model = build_model()

    def wrapped(**how):
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **how)

    with pytest.raises(hvdlite.CompressionError, match="density=7"):
        wrapped(compression="topk:density=7")
    with pytest.raises(hvdlite.CompressionError, match="rank=30 is too high for every matrix of this model"):
        wrapped(compression="powersgd:rank=30")
    with pytest.raises(ValueError, match=r"^gradient_predivide_factor not supported with op != Average$"):
        wrapped(gradient_predivide_factor=2.0, op=hvd.Sum)
    wrapped(gradient_predivide_factor=2.0, op=int(hvd.Average))
    with pytest.raises(ValueError, match=r"^backward_passes_per_step must be > 0$"):
        wrapped(backward_passes_per_step=0)
    with pytest.warns(DeprecationWarning, match="replaced by `groups`"):
        wrapped(num_groups=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped(groups=2)


def test_before_init_it_says_what_to_do():
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd\.init\(\)\.$"):
        hvd.DistributedOptimizer(torch.optim.SGD(build_model().parameters(), lr=0.1))


def test_sparse_gradients_need_no_option_alone():
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.tensor([1])).sum().backward()
    optimizer.step()


def test_the_public_names_are_sorted_and_there():
    assert hvd.__all__ == sorted(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)
