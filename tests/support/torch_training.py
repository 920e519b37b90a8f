"""A small model, its batches, and training it: on the ranks, and on one process with everybody's batch, which is the judge."""

import torch
from torch import nn

import hvdlite.torch as hvd


def build_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)).to(dtype)


def batches(step, size, dtype=torch.float32):
    return torch.randn(size, 4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)


def loss_of(model, x):
    return model(x).float().square().mean()


def distributed(model, kind=torch.optim.SGD, lr=0.05, names=True, options=None, **how):
    optimizer = kind(model.parameters(), lr=lr, **(options or {}))
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters() if names else None, **how)


def train(model, optimizer, steps, rank, size):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batches(step, size)[rank]).backward()
        optimizer.step()


def train_alone(model, optimizer, steps, size):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batches(step, size).flatten(0, 1)).backward()
        optimizer.step()


def flat(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


def assert_equal_everywhere(model):
    assert all(torch.equal(flat(model), theirs) for theirs in hvd.allgather_object(flat(model))), "the ranks' parameters differ"


def assert_like(model, alone):
    torch.testing.assert_close(flat(model), flat(alone), atol=1e-5, rtol=1e-5)


def residuals(optimizer):
    remembered = optimizer.state_dict().get("hvdlite", {"state": {}})["state"]
    return {name: quantities["residual"] for name, quantities in sorted(remembered.items()) if "residual" in quantities}


class Branches(nn.Module):
    """Two branches, of which a batch may use either; a shared layer; and one nobody uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.left, self.right, self.idle = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(40, 40)

    def forward(self, x, left, right):
        hidden = self.shared(torch.tanh(self.shared(x)))
        return (self.left(hidden) if left else 0) + (self.right(hidden) if right else 0)
