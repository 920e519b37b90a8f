"""op=Adasum on tensors, and DistributedOptimizer around local steps; one process that plays all ranks is the judge."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_training import assert_equal_everywhere, batches, build_model, distributed, flat, loss_of, train

import hvdlite
import hvdlite.torch as hvd


def combined(vectors):
    """The definition, in float64: halves of as many ranks each as a power of two allows, weighted by what they stand for."""
    if len(vectors) == 1:
        return vectors[0]
    m = 1
    while 2 * m < len(vectors):
        m *= 2
    n = len(vectors) - m
    a, b = combined(vectors[:m]), combined(vectors[m:])
    dot, aa, bb = (float((x * y).sum()) for x, y in ((a, b), (a, a), (b, b)))
    return (1 - m / (m + n) * dot / aa if aa else 1) * a + (1 - n / (m + n) * dot / bb if bb else 1) * b


def tensors(rank, dtype=torch.float32):
    return [torch.randn(shape, generator=torch.Generator().manual_seed(10 * rank + i)).to(dtype) for i, shape in enumerate([(5, 7), (3000,), (1,), (40, 50)])]


FORMS = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_"]
DTYPES = [torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize(("form", "dtype"), [*((form, torch.float32) for form in FORMS), *(("grouped_allreduce", dtype) for dtype in DTYPES)])
def test_every_form_of_allreduce(form, dtype, rank, size):
    mine = tensors(rank, dtype)
    call = getattr(hvd, form)
    result = call(mine, op=hvd.Adasum) if "grouped" in form else [call(t, op=hvd.Adasum) for t in mine]
    result = [hvd.synchronize(r) if "async" in form else r for r in result]
    assert all(torch.equal(a, b) for theirs in hvd.allgather_object(result) for a, b in zip(theirs, result, strict=True))
    for i, found in enumerate(result):
        expected = combined([tensors(r, dtype)[i].double() for r in range(size)])
        torch.testing.assert_close(found.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps)
        assert found.dtype is dtype
        assert (found is mine[i]) is form.endswith("_")


@pytest.mark.parametrize("spec", ["fp16", "bf16", hvd.Compression.fp16])
def test_16_bits_on_the_wire(spec, rank, size):
    found = hvd.allreduce(tensors(rank)[3], op=hvd.Adasum, compression=spec)
    torch.testing.assert_close(found.double(), combined([tensors(r)[3].double() for r in range(size)]), rtol=0, atol=0.04)


def test_what_it_cannot_combine(rank, size):
    with pytest.raises(hvdlite.SettingError, match="int64, and op=Adasum"):
        hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Adasum)
    with pytest.raises(hvdlite.SettingError, match="a reducescatter has no op=Adasum"):
        hvd.reducescatter(torch.ones(size), op=hvd.Adasum)
    with pytest.raises(hvdlite.SettingError, match="topk cannot compress op=Adasum"):
        distributed(build_model(), op=hvd.Adasum, compression="topk")
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        distributed(build_model(), op=hvd.Adasum, gradient_predivide_factor=2.0)


def play(kind, steps, size, options, passes=1):
    """Every rank's local step, and the changes combined parameter by parameter."""
    models = [build_model() for _ in range(size)]
    optimizers = [kind(m.parameters(), **options) for m in models]
    for step in steps:
        before = [p.detach().clone() for p in models[0].parameters()]
        for r, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for i in range(passes):
                loss_of(model, batches(passes * step + i, size)[r]).backward()
            optimizer.step()
        for i, start in enumerate(before):
            change = combined([list(m.parameters())[i].detach().double() - start.double() for m in models])
            for model in models:
                list(model.parameters())[i].data = (start.double() + change).float()
    return models[0]


@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}), (torch.optim.Adam, {"lr": 0.01}), (torch.optim.AdamW, {"lr": 0.01})]
)
@pytest.mark.parametrize("how", [{}, {"groups": 2}])
def test_ranks_step_alone_and_combine_what_changed(kind, options, how, rank, size):
    model = build_model()
    optimizer = distributed(model, kind, lr=options["lr"], options={k: v for k, v in options.items() if k != "lr"}, op=hvd.Adasum, **how)
    assert isinstance(optimizer, kind)
    train(model, optimizer, range(3), rank, size)
    torch.testing.assert_close(flat(model), flat(play(kind, range(3), size, options)), atol=1e-5, rtol=1e-5)
    assert_equal_everywhere(model)


@pytest.mark.parametrize("spec", ["fp16", "bf16"])
def test_training_with_16_bits_on_the_wire(spec, rank, size):
    model = build_model()
    train(model, distributed(model, lr=0.05, op=hvd.Adasum, compression=spec), range(3), rank, size)
    torch.testing.assert_close(flat(model), flat(play(torch.optim.SGD, range(3), size, {"lr": 0.05})), atol=2e-3, rtol=2e-3)
    assert_equal_everywhere(model)


def test_passes_closures_and_clipping(rank, size):
    model = build_model()
    optimizer = distributed(model, lr=0.05, op=hvd.Adasum, backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()

        def closure(step=step):
            for i in range(2):
                loss = loss_of(model, batches(2 * step + i, size)[rank])
                loss.backward()
            return loss

        assert optimizer.step(closure) > 0
    torch.testing.assert_close(flat(model), flat(play(torch.optim.SGD, range(3), size, {"lr": 0.05}, passes=2)), atol=1e-5, rtol=1e-5)
    nn.utils.clip_grad_norm_(model.parameters(), 0.0)
    before = flat(model)
    optimizer.step()
    assert torch.equal(flat(model), before)


def test_an_overflow_on_one_rank_skips_the_step_on_all(rank, size):
    model = build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = distributed(model, torch.optim.Adam, lr=0.01, op=hvd.Adasum)
    for step in range(3):
        before = flat(model)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batches(step, size)[rank])).backward()
        if step == 1 and rank == size - 1:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(flat(model), before) is (step == 1)
    assert_equal_everywhere(model)


def test_a_rank_that_uses_fewer_layers_and_thawed_parameters(rank, size):
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
    hvd.broadcast_parameters(model.state_dict(), 0)
    model[1].requires_grad_(requires_grad=False)
    optimizer = distributed(model, lr=0.1, op=hvd.Adasum)
    x = batches(0, size)[rank]
    kept = flat(model[1])
    model[0](x).square().mean().backward()
    optimizer.step()
    assert torch.equal(flat(model[1]), kept)
    model[1].requires_grad_()
    optimizer.zero_grad()
    (model[1] if rank == 0 else model[0])(x).square().mean().backward()
    optimizer.step()
    assert not torch.equal(flat(model[1]), kept)
    assert_equal_everywhere(model)


def test_horovods_other_calls(rank, size):
    model = build_model()
    optimizer = distributed(model, op=hvd.Adasum)
    optimizer.synchronize()
    if size > 1:
        with pytest.raises(AssertionError, match="Skipping synchronization is not supported"), optimizer.skip_synchronize():
            pass
        loss_of(model, batches(0, size)[rank]).backward()
        with pytest.raises(AssertionError, match="Gradients were computed more than backward_passes_per_step times"):
            loss_of(model, batches(1, size)[rank]).backward()
        model.zero_grad()
    optimizer.zero_grad()
    back = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert back is optimizer
    train(model, back, range(2), rank, size)
    assert_equal_everywhere(model)


@pytest.mark.usefixtures("odd")
def test_other_weights_and_other_models_are_named(rank, odd):
    model = build_model()
    if odd:
        model[2].bias.data[0] += 1
    optimizer = distributed(model, op=hvd.Adasum)
    loss_of(model, torch.ones(4, 6)).backward()
    with pytest.raises(hvdlite.SettingError, match=r"1 of 6 parameters differ, first '2\.bias'"):
        optimizer.step()
    other = nn.Linear(3, 4 if odd else 5)
    optimizer = distributed(other, op=hvd.Adasum)
    other(torch.ones(2, 3)).sum().backward()
    with pytest.raises(hvdlite.MismatchError, match="'weight' has shape"):
        optimizer.step()


def test_numpy_arrays(rank, size):
    found = hvdlite.allreduce(np.full((3, 3), rank + 1.0), op=hvdlite.Adasum)
    np.testing.assert_allclose(found, (size + 1) / 2)
