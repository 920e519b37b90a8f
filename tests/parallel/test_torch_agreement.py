"""What ranks must have in common, and what each of them is told when they have not."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_training import assert_equal_everywhere, assert_like, batches, build_model, distributed, flat, loss_of, train, train_alone

import hvdlite
import hvdlite.torch as hvd


def settings(monkeypatch, **values):
    monkeypatch.setattr(hvdlite.world(), "settings", replace(hvdlite.world().settings, **values))


def test_different_first_weights_are_named(monkeypatch, caplog, rank, size):
    def a_step(check):
        settings(monkeypatch, check_parameters=check)
        model = build_model()
        with torch.no_grad():
            model[2].weight += rank
            model[4].bias += rank
        optimizer = distributed(model)
        loss_of(model, batches(0, size)[rank]).backward()
        optimizer.step()

    if size == 1:
        a_step("error")
        return
    with pytest.raises(hvdlite.SettingError, match=r"2 of 6 parameters differ, first '2\.weight'; .*call hvd\.broadcast_parameters"):
        a_step("error")
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("WARNING", "hvdlite"):
        a_step("off")
        assert "start training from different weights" not in caplog.text
        a_step("warn")
        assert ("start training from different weights" in caplog.text) == (rank == 0)


DIFFERENT = {
    "shape": (lambda rank: nn.Linear(6, 3 + (rank > 0)), r"'weight' has shape \(3, 6\) on rank 0 but \(4, 6\) on rank 1"),
    "dtype": (lambda rank: nn.Linear(6, 3, dtype=torch.float64 if rank else torch.float32), "'weight' has dtype float32 on rank 0 but float64 on rank 1"),
    "more": (lambda rank: nn.Linear(6, 3, bias=rank > 0), "rank 0 trains 'nothing' where rank 1 trains 'bias'"),
    "names": (lambda rank: nn.ModuleDict({f"layer{rank > 0}": nn.Linear(6, 3)}), r"rank 0 trains 'layerFalse\.weight' where rank 1 trains 'layerTrue\.weight'"),
    "frozen": (lambda rank: nn.Linear(6, 3).requires_grad_(True) if not rank else _bias_frozen(), "rank 0 trains 'bias' where rank 1 trains 'nothing'"),
}


def _bias_frozen():
    layer = nn.Linear(6, 3)
    layer.bias.requires_grad_(False)
    return layer


@pytest.mark.parametrize(("build", "words"), DIFFERENT.values(), ids=DIFFERENT)
def test_models_that_differ_are_named_on_every_rank_and_the_session_goes_on(build, words, rank, size):
    if size == 1:
        return
    model = build(rank)
    optimizer = distributed(model)
    with pytest.raises(hvdlite.MismatchError, match=words):
        sum(p.sum() for p in model.parameters() if p.requires_grad).backward()
    del optimizer
    model, alone = build_model(), build_model()  # their gradients lie elsewhere on a rank that has allocated more
    train(model, distributed(model), range(3), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(3), size)
    assert_like(model, alone)


def test_compressors_that_differ_are_named_on_every_rank(rank, size):
    if size == 1:
        return
    model = build_model()
    optimizer = distributed(model, compression=f"topk:density=0.{1 + (rank > 0)}")
    loss_of(model, batches(0, size)[rank]).backward()
    with pytest.raises(hvdlite.MismatchError, match=r"compression 'topk:density=0\.1' on rank 0 but 'topk:density=0\.2' on rank 1"):
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size


def test_the_environment_chooses_the_compressor(monkeypatch, caplog, rank, size):
    settings(monkeypatch, compression="topk:density=0.2")
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("INFO", "hvdlite"):
        model = build_model()
        optimizer = distributed(model, compression="fp16")
    assert "HVDLITE_COMPRESSION=topk:density=0.2 replaces the script's compression fp16" in caplog.text
    train(model, optimizer, range(2), rank, size)
    settings(monkeypatch, compression="")
    judge = build_model()
    train(judge, distributed(judge, compression="topk:density=0.2"), range(2), rank, size)
    assert torch.equal(flat(model), flat(judge))


def test_flushing_when_layers_become_ready_in_another_order_on_each_rank(monkeypatch, rank, size):
    settings(monkeypatch, bucket_bytes=1)
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(40, 40) for _ in range(4)])
    optimizer = distributed(model, compression="topk:density=0.1")
    order = list(range(4)) if rank == 0 else list(reversed(range(4)))
    for step in range(6):
        if step == 3:
            optimizer.flush()
        optimizer.zero_grad()
        for i in order:
            model[i](torch.ones(1, 40) * (rank + 1)).square().mean().backward()
        optimizer.step()
    assert_equal_everywhere(model)


def test_flushing_on_one_rank_alone_is_refused(rank, size):
    if size == 1:
        return
    model = build_model()
    optimizer = distributed(model, compression="topk:density=0.1")
    train(model, optimizer, range(2), rank, size)
    if rank == 0:
        optimizer.flush()
    with pytest.raises(hvdlite.MismatchError, match=r"'topk:density=0\.1 \(flushing\)' on rank 0 but 'topk:density=0\.1' on rank 1"):
        train(model, optimizer, [2], rank, size)
