"""Training in a process set: its ranks are one job, and those outside train alone."""

import numpy as np
import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from hvdlite.compression import names


@pytest.fixture(scope="module")
def low(_world):
    """All ranks but the last, who is left over; all of them in a world of one or two, where such a set has one rank at most."""
    size = hvd.size()
    made = hvd.global_process_set if size < 3 else hvd.add_process_set(range(size - 1))
    yield made
    if size > 2:
        assert hvd.remove_process_set(made)


@pytest.fixture(scope="module")
def high(_world):
    """All ranks but the first."""
    size = hvd.size()
    made = hvd.global_process_set if size < 3 else hvd.add_process_set(range(1, size))
    yield made
    if size > 2:
        assert hvd.remove_process_set(made)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 1))


def batch(place: int, step: int) -> torch.Tensor:
    return torch.randn(8, 12, generator=torch.Generator().manual_seed(100 * step + place))


def train(process_set, place: int, compression="none", steps: int = 6):
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net.named_parameters(), compression, process_set=process_set)
    for step in range(steps):
        optimizer.zero_grad()
        x = batch(place, step)
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().ravel() for p in net.parameters()]), optimizer


def test_a_set_equals_one_process_with_all_its_batches(low, rank):
    found, _ = train(low, rank)
    alone, net = low.ranks if low.included() else [rank], model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.cat([batch(r, step) for r in alone])
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(found, torch.cat([p.detach().ravel() for p in net.parameters()]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compression", names())
def test_which_ranks_form_a_set_makes_no_difference(low, high, rank, compression):
    """Two sets of one size on one machine, each rank at another place in them: the same bits, and the same state of the compressor at a place."""
    found = {}
    for s in (low, high):
        if s.included():
            weights, optimizer = train(s, s.rank(), compression)
            assert len({w.numpy().tobytes() for w in hvd.allgather(weights[None], process_set=s)}) == 1
            found[s] = weights.numpy().tobytes(), optimizer.state_dict().get("hvdlite")
    everyone = hvd.allgather_object({s.process_set_id: (s.rank(), w, repr(state and state["state"])) for s, (w, state) in found.items()})
    by_place = [{theirs[s.process_set_id][0]: theirs[s.process_set_id][1:] for theirs in everyone if s.process_set_id in theirs} for s in (low, high)]
    assert by_place[0] == by_place[1]
    for _, state in found.values():
        if state is not None:
            assert state["size"] == low.size()


def test_state_and_statistics_are_those_of_the_set(low, rank):
    net = nn.Linear(3, 2)
    nn.init.constant_(net.weight, float(rank))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 + rank, momentum=0.9)
    layer = hvd.SyncBatchNorm(3, process_set=low)
    x = {r: torch.randn(5 + r, 3, generator=torch.Generator().manual_seed(r)) for r in range(hvd.size())}
    together = low.ranks if low.included() else [rank]
    if low.included():
        hvd.broadcast_parameters(net.state_dict(), low.ranks[-1], process_set=low)
        hvd.broadcast_optimizer_state(optimizer, low.ranks[-1], process_set=low)
        found = hvd.sparse_allreduce_async(torch.eye(4)[[rank % 4]].to_sparse(), "sets.sparse", hvd.Sum, process_set=low)().to_dense()
        assert found.tolist() == sum(torch.eye(4)[[r % 4]] for r in low.ranks).tolist()
    assert set(net.weight.detach().ravel().tolist()) == {float(together[-1])}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 + together[-1])
    whole = torch.cat([x[r] for r in together])
    expected = (x[rank] - whole.mean(0)) / (whole.var(0, unbiased=False) + layer.eps).sqrt()
    torch.testing.assert_close(layer(x[rank]), expected, rtol=1e-4, atol=1e-5)


def test_derivatives_are_taken_within_the_set(low, rank):
    if not low.included():
        return  # it has no part in them
    n, x = low.size(), torch.tensor([[1.0 + rank, 2.0]], requires_grad=True)
    rows = x.repeat(n, 1)
    cases = {
        "allreduce": (hvd.allreduce(x, op=hvd.Sum, process_set=low), n),
        "allgather": (hvd.allgather(x, process_set=low), 1),
        "broadcast": (hvd.broadcast(x, low.ranks[-1], process_set=low), float(rank == low.ranks[-1])),
        "alltoall": (hvd.alltoall(rows, [1] * n, process_set=low)[0], n),
        "reducescatter": (hvd.reducescatter(rows, op=hvd.Sum, process_set=low), n * n),
    }
    for name, (result, slope) in cases.items():
        (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        np.testing.assert_allclose(gradient, np.full((1, 2), slope), err_msg=name)


def test_an_optimizer_of_a_set_that_is_not_registered_is_refused(rank):
    with pytest.raises(hvd.ProcessSetError, match="a set that is registered is expected"):
        hvd.DistributedOptimizer(torch.optim.SGD(model().parameters(), lr=0.1), process_set=hvd.ProcessSet([rank]))
