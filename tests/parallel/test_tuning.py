"""What is chosen by measurement: on real ranks, whatever is found to be fastest, training is what it is with a fixed setting."""

import io
from dataclasses import replace

import pytest
import torch

import hvdlite
import hvdlite.torch as hvd
from hvdlite import buckets
from hvdlite.tuning import Candidate, Tuner

STEPS = 70
SIZES = (5000, 20_000, 100_000)
FIXED = {"bucket_bytes": 20_000, "slots_in_use": 4}


class Model(torch.nn.Module):
    """Registered in another order than that of use; its matrices are of 16 KB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.layers = torch.nn.Linear(64, 1), torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


@pytest.fixture
def tried(monkeypatch) -> list[Candidate]:
    """Small buckets are the candidates; every step notes what was in use."""
    used: list[Candidate] = []

    class Noted(Tuner):
        def step(self, seconds: float | None) -> bool:
            used.append(self.current)
            return super().step(seconds)

    for name, value in (("BUCKET_BYTES", SIZES), ("DEFAULT_BUCKET_BYTES", FIXED["bucket_bytes"]), ("Tuner", Noted)):
        monkeypatch.setattr(buckets, name, value)
    return used


def start(model: Model, spec: str):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), named_parameters=model.named_parameters(), compression=spec)


def train(model: Model, optimizer, steps: range, rank: int) -> list[bytes]:
    """The parameters after every step."""
    seen = []
    for step in steps:
        rng = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(8, 64, generator=rng)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(-1, keepdim=True)).backward()
        optimizer.step()
        seen.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().tobytes())
    return seen


def fixed(monkeypatch, **knobs: int) -> None:
    monkeypatch.setattr(hvdlite.world(), "settings", replace(hvdlite.world().settings, **knobs))


def sizes_may_change(size: int) -> bool:
    """Sums of more than two ranks are the same in all buckets in the memory of one machine only."""
    memory = hvdlite.world().transport.allocate(1, "uint8")
    return size == 2 or (hvdlite.world().transport.holds(memory) and not hvdlite.world().transport.num_carriers)


@pytest.mark.parametrize("spec", ["none", "powersgd:rank=2", "topk:density=0.1"])
def test_training_that_is_tuned_is_training_with_a_fixed_setting_bit_for_bit(spec, tried, monkeypatch, rank, size):
    model = Model()
    tuned = train(model, start(model, spec), range(STEPS), rank)
    other = Model()
    fixed(monkeypatch, **FIXED)
    assert tuned == train(other, start(other, spec), range(STEPS), rank)
    assert all(theirs == tuned[-1] for theirs in hvd.allgather_object(tuned[-1]))
    assert len({str(t) for t in hvd.allgather_object(tried)}) == 1
    if size > 1:
        expected = 3 if sizes_may_change(size) and spec != "topk:density=0.1" else 1
        assert len({c.bucket_bytes for c in tried}) in (expected, 0 if expected == 1 else expected)


@pytest.mark.parametrize(("spec", "saved_at"), [("none", 10), ("powersgd:rank=2", 10), ("powersgd:rank=2", 65)])
def test_a_run_resumed_while_or_after_it_is_tuned_is_the_uninterrupted_one(spec, saved_at, tried, rank, size):
    model = Model()
    optimizer = start(model, spec)
    train(model, optimizer, range(saved_at), rank)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = train(model, optimizer, range(saved_at, saved_at + STEPS), rank)
    resumed = Model()
    optimizer = start(resumed, spec)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    resumed.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert train(resumed, optimizer, range(saved_at, saved_at + STEPS), rank) == expected
