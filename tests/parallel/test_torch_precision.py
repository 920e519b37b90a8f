"""Tensors of every precision and layout, and training in mixed precision with a loss scaler."""

import pytest
import torch
from torch import nn
from torch_training import assert_equal_everywhere, assert_like, batches, build_model, distributed, flat, loss_of, residuals


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("compression", ["none", "fp16", "topk:density=0.1", "powersgd:rank=2"])
def test_models_of_any_precision(dtype, compression, rank, size):
    model = build_model(dtype)
    optimizer = distributed(model, compression=compression)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(batches(step, size, dtype)[rank]).double().square().mean()
        loss.backward()
        optimizer.synchronize()
        if compression == "none":
            alone = build_model(dtype)
            alone.load_state_dict(model.state_dict())
            x = batches(step, size, dtype).flatten(0, 1)
            expected = torch.autograd.grad(alone(x).double().square().mean(), list(alone.parameters()))
            tolerance = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
            for p, g in zip(model.parameters(), expected, strict=True):
                assert p.grad.dtype == dtype
                torch.testing.assert_close(p.grad, g, atol=tolerance, rtol=4 * tolerance)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_equal_everywhere(model)
    assert flat(model).isfinite().all()


def test_mixed_precisions_in_one_model(rank, size):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6, dtype=torch.bfloat16), nn.Linear(6, 6, dtype=torch.float64)])
    optimizer = distributed(model)
    for step in range(3):
        x = batches(step, size)[rank]
        optimizer.zero_grad()
        for layer in model:
            x = layer(x.to(layer.weight.dtype))
        x.square().mean().backward()
        optimizer.step()
    assert_equal_everywhere(model)


@pytest.mark.parametrize("form", ["channels last", "transposed", "expanded gradient"])
def test_parameters_and_gradients_of_any_layout(form, rank, size):
    def build():
        torch.manual_seed(0)
        if form == "channels last":
            return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        if form == "transposed":
            layer = nn.Linear(6, 4)
            layer.weight = nn.Parameter(torch.randn(6, 4).t())
            return layer
        return nn.Linear(6, 4)

    def loss(model, x):
        if form == "channels last":
            return model(x.repeat_interleave(18, -1).reshape(-1, 3, 6, 6)).square().mean()
        return model.weight.sum() * x.mean() if form == "expanded gradient" else loss_of(model, x)

    model, alone = build(), build()
    strides = [p.stride() for p in model.parameters()]
    optimizer, judge = distributed(model, options={"momentum": 0.9}), torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        x = batches(step, size)
        optimizer.zero_grad()
        loss(model, x[rank]).backward()
        optimizer.step()
        judge.zero_grad()
        loss(alone, x.flatten(0, 1)).backward()
        judge.step()
    assert_like(model, alone)
    assert [p.stride() for p in model.parameters()] == strides


def test_sparse_gradients_are_made_dense_on_request(rank, size):
    def build():
        torch.manual_seed(0)
        return nn.Embedding(10, 3, sparse=True)

    rows = [torch.tensor([r, 9]) for r in range(size)]
    model, alone = build(), build()
    optimizer, judge = distributed(model, sparse_as_dense=True), torch.optim.SGD(alone.parameters(), lr=0.05)
    for to_none in (True, False, False):
        optimizer.zero_grad(set_to_none=to_none)
        model(rows[rank]).sum().backward()
        optimizer.step()
        judge.zero_grad()
        (sum(alone(r).sum() for r in rows) / size).backward()
        judge.step()
    assert_like(model, alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compression", ["none", "topk:density=0.1"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_scaler_step_just_works(dtype, compression, kind, rank, size):
    model = build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    optimizer = distributed(model, kind, lr=0.01, compression=compression, grad_scaler=scaler)
    alone = build_model()
    judge = kind(alone.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(model, batches(step, size)[rank])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        judge.zero_grad()
        with torch.autocast("cpu", dtype):
            loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        judge.step()
    assert scaler.get_scale() == 2048.0
    assert_equal_everywhere(model)
    if compression == "none" and kind is torch.optim.SGD:
        torch.testing.assert_close(flat(model), flat(alone), atol=2e-3, rtol=2e-2)
    assert not torch.equal(flat(model), flat(build_model()))


@pytest.mark.parametrize("compression", ["none", "fp16", "int8", "topk:density=0.1", "powersgd:rank=2"])
@pytest.mark.parametrize("poison", [float("inf"), float("nan")], ids=str)
def test_infinity_on_one_rank_skips_the_step_on_all(poison, compression, rank, size):
    model = build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = distributed(model, compression=compression, grad_scaler=scaler)
    for step in range(5):
        before, owed = flat(model), residuals(optimizer)
        optimizer.zero_grad()
        loss = loss_of(model, batches(step, size)[rank])
        if step == 3 and rank == size - 1:
            loss = loss * poison
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 3:
            assert torch.equal(flat(model), before)
            assert owed.keys() == residuals(optimizer).keys()
            assert all(torch.equal(r, owed[name]) for name, r in residuals(optimizer).items())
        else:
            assert not torch.equal(flat(model), before)
        assert scaler.get_scale() == (64.0 if step < 3 else 32.0)
    assert flat(model).isfinite().all()
    assert_equal_everywhere(model)


def test_residuals_follow_the_loss_scale(rank, size):
    """Powers of two scale exactly: a run with a changing scale ends with the bits of a run without any."""
    ends = []
    for scales in ([1.0] * 6, [1.0, 1.0, 1024.0, 1024.0, 0.25, 1.0]):
        model = build_model()
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10_000)
        optimizer = distributed(model, compression="topk:density=0.1", grad_scaler=scaler)
        for step, scale in enumerate(scales):
            scaler.update(scale) if step else None
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batches(step, size)[rank])).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_unscale_then_clip(rank, size):
    model, alone = build_model(), build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batches(step, size)[rank])).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        judge.zero_grad()
        loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 0.01))
        judge.step()
    assert_like(model, alone)
