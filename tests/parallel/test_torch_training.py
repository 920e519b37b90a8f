"""Training on P ranks is training on one process with a batch P times as large; and compressed training keeps its promises."""

import io
import logging
from dataclasses import replace

import pytest
import torch

import hvdlite
import hvdlite.torch as hvd

BATCH = 8
COMPRESSED = ["topk:density=0.1", "powersgd:rank=2"]
SGD = (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3})
ADAM = (torch.optim.Adam, {"lr": 0.01})


def build_model(width=40):
    """A layer that every compressor finds worth compressing, one that none does, and a wide one, so that there are two kinds of bucket."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))


def batches(step, count):
    """The batches of ``count`` workers in a step, of a fixed function."""
    rng = torch.Generator().manual_seed(step)
    x = torch.randn(count, BATCH, 8, generator=rng)
    return x, x.sum(-1, keepdim=True)


def distributed(model, recipe, **how):
    kind, options = recipe
    return hvd.DistributedOptimizer(kind(model.parameters(), **options), named_parameters=model.named_parameters(), **how)


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


def train(model, optimizer, steps, rank, size, passes=1):
    """The rank's own losses; each pass takes a batch of its own."""
    losses = []
    for step in steps:
        x, y = batches(step, size * passes)
        optimizer.zero_grad()
        for p in range(passes):
            loss = loss_of(model, x[rank * passes + p], y[rank * passes + p]) / passes
            loss.backward()
            losses.append(loss.detach() * passes)
        optimizer.step()
    return torch.stack(losses).view(len(steps), passes)


def train_alone(recipe, steps, workers, scale=1.0):
    """Plain torch in one process on everybody's batches; hvdlite has no part in it."""
    model = build_model()
    kind, options = recipe
    optimizer = kind(model.parameters(), **options)
    losses = []
    for step in steps:
        x, y = batches(step, workers)
        optimizer.zero_grad()
        loss = loss_of(model, x.flatten(0, 1), y.flatten(0, 1))
        (loss * scale).backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, torch.stack(losses)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def assert_equal_everywhere(model):
    assert all(torch.equal(flat(model), theirs) for theirs in hvd.allgather_object(flat(model))), "the ranks' parameters differ"


VARIANTS = {
    "compression none": lambda m: {"compression": "none"},
    "predivide": lambda m: {"gradient_predivide_factor": 4.0},
    "predivide, groups": lambda m: {"gradient_predivide_factor": 4.0, "groups": [[m[0].weight, m[4].bias], [m[2].bias]]},
    "groups 1": lambda m: {"groups": 1},
    "groups 3": lambda m: {"groups": 3},
    "groups of lists": lambda m: {"groups": [[m[0].weight, m[4].bias], [m[2].bias]]},
    "sum": lambda m: {"op": hvd.Sum},
    "three passes": lambda m: {"backward_passes_per_step": 3},
    "two passes, sum, groups": lambda m: {"backward_passes_per_step": 2, "op": hvd.Sum, "groups": 2},
}


def assert_equals_one_process(recipe, num_steps, how, rank, size):
    model, steps = build_model(), range(num_steps)
    how = how(model)
    passes = how.get("backward_passes_per_step", 1)
    scale = 1.0
    if how.get("op") is hvd.Sum:
        scale = size
        recipe = (recipe[0], recipe[1] | {"lr": recipe[1]["lr"] / size})
    losses = train(model, distributed(model, recipe, **how), steps, rank, size, passes)
    alone, curve = train_alone(recipe, steps, size * passes, scale)
    torch.testing.assert_close(hvd.allreduce(losses.mean(1)), curve, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(flat(model), flat(alone), atol=1e-5, rtol=1e-5)
    assert curve[-5:].mean() < curve[:5].mean()
    assert_equal_everywhere(model)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("recipe", [SGD, ADAM], ids=["sgd", "adam"])
def test_ranks_equal_one_process_with_the_whole_batch(recipe, passes, rank, size):
    assert_equals_one_process(recipe, 25, lambda m: {"backward_passes_per_step": passes}, rank, size)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_no_option_changes_the_sum(variant, rank, size):
    assert_equals_one_process(SGD, 12, variant, rank, size)


def small_buckets(monkeypatch, bucket_bytes=1):
    """Every large layer in a bucket of its own: several are in flight at once, and laid out anew after the first step."""
    monkeypatch.setattr(hvdlite.world(), "settings", replace(hvdlite.world().settings, bucket_bytes=bucket_bytes))


class Shuffled(torch.nn.Module):
    """Layers registered in another order than that of use, so that buckets of 6,000 bytes hold other layers after the first step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.third, self.first, self.second, self.last = torch.nn.Linear(40, 40), torch.nn.Linear(8, 130), torch.nn.Linear(130, 40), torch.nn.Linear(40, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))


def test_many_small_buckets_equal_one_process(monkeypatch, rank, size):
    small_buckets(monkeypatch)
    assert_equals_one_process(SGD, 25, lambda m: {}, rank, size)


def two_wide_layers():
    """Two layers that are compressed, so that compressed buckets can be two."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 130), torch.nn.Tanh(), torch.nn.Linear(130, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))


@pytest.mark.parametrize("spec", sorted(hvdlite.compression.names()))
def test_every_compressor_keeps_the_ranks_together_and_the_loss_falling(spec, monkeypatch, rank, size):
    small_buckets(monkeypatch)
    model = two_wide_layers()
    losses = train(model, distributed(model, (torch.optim.SGD, {"lr": 0.03, "momentum": 0.5}), compression=spec), range(60), rank, size)
    assert_equal_everywhere(model)
    curve = hvd.allreduce(losses)
    assert curve.isfinite().all()
    assert curve[-15:].mean() < 0.6 * curve[:15].mean()


def residuals(optimizer):
    remembered = optimizer.state_dict().get("hvdlite", {"state": {}})["state"]
    return {name: quantities["residual"] for name, quantities in remembered.items() if "residual" in quantities}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(("spec", "recipe"), [("int8", SGD), ("topk:density=0.1", SGD), ("topk:density=0.1", ADAM), ("powersgd:rank=2", SGD)])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(spec, recipe, monkeypatch, rank, size):
    small_buckets(monkeypatch, 6000)
    model = Shuffled()
    optimizer = distributed(model, recipe, compression=spec)
    train(model, optimizer, range(20), rank, size)
    checkpoint = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    expected = train(model, optimizer, range(20, 40), rank, size)

    resumed = Shuffled()
    torch.nn.init.zeros_(resumed.first.weight)
    optimizer = distributed(resumed, recipe, compression=spec)
    resumed.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    found = train(resumed, optimizer, range(20, 40), rank, size)
    assert torch.equal(found, expected)
    assert torch.equal(flat(resumed), flat(model))


def test_a_state_loaded_on_one_rank_and_broadcast_goes_on(monkeypatch, rank, size):
    """Rank 0 reads the file, the others hear of it: the ranks must come together, whatever rank 0 alone remembers."""
    small_buckets(monkeypatch, 6000)
    model = Shuffled()
    optimizer = distributed(model, SGD, compression="topk:density=0.1")
    train(model, optimizer, range(5), rank, size)
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    resumed = Shuffled()
    optimizer = distributed(resumed, SGD, compression="topk:density=0.1")
    if rank == 0:
        resumed.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(resumed.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(resumed, optimizer, range(5, 10), rank, size)
    assert_equal_everywhere(resumed)


def test_a_state_is_a_snapshot_and_travels_by_pickle_and_copy(rank, size):
    import copy
    import pickle

    model = build_model()
    optimizer = distributed(model, SGD, compression="topk:density=0.1")
    train(model, optimizer, range(3), rank, size)
    state = optimizer.state_dict()
    kept = copy.deepcopy(residuals(optimizer))
    assert bool(kept) == (size > 1)
    copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    train(model, optimizer, range(3, 6), rank, size)
    for other in (state, *copies):
        assert all(torch.equal(other["hvdlite"]["state"][name]["residual"], r) for name, r in kept.items())


@pytest.mark.parametrize("spec", COMPRESSED)
@pytest.mark.parametrize("foreign", ["rank", "size"])
def test_residuals_of_another_rank_or_world_are_dropped_with_a_warning(foreign, spec, caplog, monkeypatch, rank, size):
    if size == 1:
        return  # alone nothing is compressed, so there is nothing to load
    model = build_model()
    optimizer = distributed(model, SGD, compression=spec)
    train(model, optimizer, range(3), rank, size)
    state = optimizer.state_dict()
    assert any(r.any() for r in residuals(optimizer).values())
    state["hvdlite"] |= {"rank": (rank + 1) % size} if foreign == "rank" else {"size": size + 1}
    optimizer = distributed(model, SGD, compression=spec)
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("WARNING", "hvdlite"):
        optimizer.load_state_dict(state)
    assert f"rank {rank} of {size} loads the state of rank" in caplog.text
    assert "flush()" in caplog.text
    assert not residuals(optimizer)
    if spec.startswith("powersgd"):  # what is not a residual is kept
        loaded = optimizer.state_dict()["hvdlite"]["state"]
        assert all(torch.equal(loaded[name]["q"], quantities["q"]) for name, quantities in state["hvdlite"]["state"].items() if "q" in quantities)
    train(model, optimizer, range(3, 6), rank, size)
    assert_equal_everywhere(model)


def test_a_state_of_another_compressor_is_left_alone_with_a_warning(caplog, monkeypatch, rank, size):
    model = build_model()
    optimizer = distributed(model, SGD, compression="topk:density=0.1")
    train(model, optimizer, range(3), rank, size)
    state = optimizer.state_dict()
    optimizer = distributed(model, SGD, compression="powersgd:rank=2")
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("WARNING", "hvdlite"):
        optimizer.load_state_dict(state)
    assert ("the checkpoint was compressed with topk:density=0.1, this run with powersgd:rank=2" in caplog.text) == (size > 1)
    train(model, optimizer, range(3, 6), rank, size)
    assert_equal_everywhere(model)


def test_a_plain_state_loads_into_a_compressed_run_and_back(rank, size):
    model = build_model()
    plain = torch.optim.SGD(model.parameters(), **SGD[1])
    compressed = distributed(build_model(), SGD, compression="topk:density=0.1")
    compressed.load_state_dict(plain.state_dict())
    plain.load_state_dict(compressed.state_dict())


@pytest.mark.parametrize("spec", COMPRESSED)
def test_after_a_flush_nothing_is_owed(spec, monkeypatch, rank, size):
    """The flushing step delivers the mean gradient and the mean residual exactly; then training goes on."""
    small_buckets(monkeypatch)
    model = two_wide_layers()
    optimizer = distributed(model, (torch.optim.SGD, {"lr": 1.0}), compression=spec)
    rate = optimizer.param_groups[0]
    rate["lr"] = 0.02
    train(model, optimizer, range(5), rank, size)
    owed = {name: hvd.allreduce(r) for name, r in sorted(residuals(optimizer).items())}
    assert size == 1 or any(r.any() for r in owed.values())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = batches(5, size)
    optimizer.flush()
    optimizer.zero_grad()
    loss_of(model, x[rank], y[rank]).backward()
    optimizer.step()
    assert not any(r.any() for r in residuals(optimizer).values())
    exact = whole_gradient(model, before, x, y)
    for name, p in model.named_parameters():
        given = exact[name] + owed.get(name, 0.0)
        torch.testing.assert_close((before[name] - p.detach()) / 0.02, given, atol=1e-4, rtol=1e-3)
    train(model, optimizer, range(6, 9), rank, size)
    assert_equal_everywhere(model)
    assert size == 1 or any(r.any() for r in residuals(optimizer).values())


def whole_gradient(model, parameters, x, y):
    """Plain torch: the gradient on everybody's batch at the given parameters."""
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    loss = torch.nn.functional.mse_loss(torch.func.functional_call(model, leaves, x.flatten(0, 1)), y.flatten(0, 1))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("spec", COMPRESSED)
def test_what_was_delivered_and_what_is_owed_is_all_there_was(spec, rank, size):
    """Error feedback loses nothing: delivered gradients + mean residual = the sum of the true mean gradients."""
    model = build_model()
    lr = 0.02
    optimizer = distributed(model, (torch.optim.SGD, {"lr": lr}), compression=spec)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    true = {name: torch.zeros_like(p) for name, p in start.items()}
    for step in range(30):
        x, y = batches(step, size)
        exact = whole_gradient(model, {name: p.detach() for name, p in model.named_parameters()}, x, y)
        for name in true:
            true[name] += exact[name]
        train(model, optimizer, [step], rank, size)
    owed = {name: hvd.allreduce(r) for name, r in sorted(residuals(optimizer).items())}
    for name, p in model.named_parameters():
        torch.testing.assert_close((start[name] - p.detach()) / lr + owed.get(name, 0.0), true[name], atol=1e-3, rtol=1e-3)
