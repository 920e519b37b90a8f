"""Parameters, optimizer state and objects that every rank gets from one."""

import pytest
import torch

import hvdlite
import hvdlite.torch as hvd


def build_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2, dtype=torch.float32))


FORMS = {
    "state_dict": lambda m: m.state_dict(),
    "named_parameters": lambda m: m.named_parameters(),
    "list of pairs": lambda m: list(m.state_dict().items()),
    "tuple of tensors": lambda m: tuple(m.state_dict().values()),
    "generator of tensors": lambda m: (t for t in m.state_dict().values()),
    "parameters": lambda m: m.parameters(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_broadcast_parameters_takes_every_form(form, rank, size):
    model, wanted = build_model(rank), build_model(size - 1)
    leaves = list(model.parameters())
    hvd.broadcast_parameters(form(model), root_rank=size - 1)
    for mine, theirs in zip(model.state_dict().values(), wanted.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert all(a is b and a.requires_grad and a.is_leaf for a, b in zip(leaves, model.parameters(), strict=True))


def test_broadcast_parameters_ignores_the_order_of_a_state_dict_and_what_is_no_tensor(rank, size):
    given = {"a": torch.full((2,), float(rank)), "b": torch.full((3,), 10.0 + rank), "steps": 3, "none": None}
    if rank % 2:
        given = dict(reversed(given.items()))
    hvd.broadcast_parameters(given, 0)
    assert torch.equal(given["a"], torch.zeros(2))
    assert torch.equal(given["b"], torch.full((3,), 10.0))
    hvd.broadcast_parameters({}, 0)


@pytest.mark.parametrize("wrong", [3, None, torch.zeros(2)], ids=["number", "none", "tensor"])
def test_broadcast_parameters_refuses_what_holds_no_parameters(wrong):
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(wrong, 0)


def test_models_that_differ_are_named_by_broadcast_parameters(rank, size):
    model = torch.nn.Linear(4, 6 if rank else 5)
    if size == 1:
        return
    with pytest.raises(hvdlite.MismatchError, match=r"'weight' has shape \(5, 4\) on rank 0 but \(6, 4\) on rank 1"):
        hvd.broadcast_parameters([("weight", model.weight)], 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size  # the session goes on


def optimizers():
    """Every optimizer of torch that has parameters of its own to take; learning rates are the defaults."""
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)]
    return {k.__name__: k for k in kinds if k not in (torch.optim.Optimizer, torch.optim.LBFGS)}


def a_step(kind, model, optimizer):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
        if kind is torch.optim.SparseAdam:
            p.grad = p.grad.to_sparse()
    optimizer.step()
    optimizer.zero_grad()


def flattened(state):
    if isinstance(state, dict):
        return {f"{k}/{name}": v for k, part in state.items() for name, v in flattened(part).items()}
    if isinstance(state, (list, tuple)):
        return flattened(dict(enumerate(state)))
    return {"": state}


@pytest.mark.parametrize("has_state", ["every rank", "the root", "the others"])
@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
def test_broadcast_optimizer_state_equals_the_roots_and_takes_no_step(kind, has_state, rank, size):
    torch.manual_seed(rank)
    root = size - 1
    model = torch.nn.Linear(3, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.01 * (rank + 1))
    if has_state == "every rank" or (has_state == "the root") == (rank == root):
        for _ in range(rank + 1):
            a_step(kind, model, optimizer)
    weights, is_fresh = model.weight.detach().clone(), not optimizer.state  # Adagrad never is
    hvd.broadcast_optimizer_state(optimizer, root)
    assert torch.equal(model.weight, weights)
    if is_fresh and kind is not torch.optim.SparseAdam:
        assert torch.equal(model.weight.grad, torch.zeros(2, 3))
    else:
        assert model.weight.grad is None
    everyone = hvd.allgather_object(optimizer.state_dict())
    for theirs in everyone:
        mine, other = flattened(everyone[root]), flattened(theirs)
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key], key
    assert optimizer.param_groups[0]["lr"] == 0.01 * (root + 1)
    a_step(kind, model, optimizer)


def test_lbfgs_state_cannot_be_broadcast():
    with pytest.raises(ValueError, match=r"cannot broadcast torch\.optim\.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.zeros(2, requires_grad=True)]), 0)


def test_objects_of_any_size_travel(rank, size):
    assert hvd.broadcast_object({"from": rank, "long": [rank] * 10_000}, root_rank=size - 1) == {"from": size - 1, "long": [size - 1] * 10_000}
    assert hvd.broadcast_object(None) is None
    assert hvd.allgather_object(["x"] * rank) == [["x"] * r for r in range(size)]
    assert torch.equal(hvd.allgather_object(torch.tensor([rank]))[size - 1], torch.tensor([size - 1]))
