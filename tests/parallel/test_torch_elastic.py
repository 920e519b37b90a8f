"""Elastic states on several ranks: what rank 0 has is everybody's, and after a failure all go on together in the same processes."""

import copy

import pytest
import torch

import hvdlite
import hvdlite.torch as hvd


def build(seed, compression):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 80), torch.nn.Tanh(), torch.nn.Linear(80, 80), torch.nn.Tanh(), torch.nn.Linear(80, 1))
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters(), compression)


def step(state, rank):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * state.step + rank))
    state.optimizer.zero_grad()
    (state.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    state.optimizer.step()
    state.step += 1


def weights(state):
    return [p.tolist() for p in state.model.parameters()]


def test_sync_makes_the_ranks_equal_and_the_shared_state_the_saved_one(rank):
    model, optimizer = build(rank, None)
    state = hvd.elastic.TorchState(model, optimizer, sampler=hvd.elastic.ElasticSampler(range(24)), epoch=10 + rank)
    if rank == 0:
        state.sampler.record_batch(0, 2)
    state.sync()
    everyone = hvd.allgather_object((weights(state), state.epoch, state.sampler.state_dict()))
    assert all(theirs == everyone[0] for theirs in everyone)
    assert state.epoch == 10
    for p in model.parameters():
        p.data.zero_()
    state.epoch = 99
    state.restore()
    assert (weights(state), state.epoch, state.sampler.state_dict()) == everyone[0]


@pytest.mark.parametrize("compression", [None, "topk:density=0.1", "powersgd:rank=2"])
@pytest.mark.usefixtures("odd")  # nobody to disagree with, alone
def test_after_a_mismatch_all_ranks_go_on_as_if_nothing_had_happened(rank, size, compression):
    """In the same processes: the world is made anew, and the optimizer exchanges in it. What compressors remember is restored too."""
    plain = hvd.elastic.TorchState(*build(0, compression), step=0)
    plain.sync()
    for _ in range(12):
        step(plain, rank)
    failures = []

    @hvd.elastic.run
    def train(state):
        while state.step < 12:
            step(state, rank)
            if state.step == 8 and not failures:
                failures.append(state.step)
                hvd.allreduce(torch.ones(2 + rank), name="unequal")
            if state.step % 3 == 0:
                state.commit()
        return state.step

    before = hvdlite.world()
    state = hvd.elastic.TorchState(*build(0, compression), step=0)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    assert train(state) == 12
    assert hvdlite.world() is not before
    assert (failures, resets) == ([8], [6])
    assert weights(state) == weights(plain)


@pytest.mark.parametrize("compression", ["topk:density=0.1", "powersgd:rank=2"])
@pytest.mark.usefixtures("odd")  # alone, compressors remember nothing
def test_ranks_start_again_from_a_snapshot_with_what_no_compressor_remembers(rank, compression):
    """Rank 0's residuals and factors are not in it: the other ranks have lost theirs."""
    before = hvd.elastic.TorchState(*build(0, compression), step=0)
    before.sync()
    for _ in range(4):
        step(before, rank)
    before.commit()
    after = hvd.elastic.TorchState(*build(1 + rank, compression), step=0)
    if rank == 0:
        after.load_snapshot(before.snapshot())
    after.sync()
    assert after.step == 4
    assert weights(after) == weights(before)
    fresh = hvd.elastic.TorchState(*build(0, compression), step=4)
    fresh.model.load_state_dict(before.model.state_dict())
    fresh.optimizer.load_state_dict({key: value for key, value in copy.deepcopy(before.optimizer.state_dict()).items() if key != "hvdlite"})
    for state in (before, after, fresh):
        for _ in range(4):
            step(state, rank)
    assert weights(after) == weights(fresh)
    assert weights(after) != weights(before)
