"""Gradients of embeddings that stay sparse: N ranks equal one process, and only the rows that were used travel."""

import pytest
import torch
from torch import nn

import hvdlite
import hvdlite.torch as hvd

ROWS = 5000


class Words(nn.Module):
    """An embedding, and dense layers behind it."""

    def __init__(self, rows: int = ROWS):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(rows, 8, sparse=True)
        self.head = nn.Linear(8, 1)

    def forward(self, words):
        return self.head(self.table(words)).square().mean()


def words(step: int, rank: int) -> torch.Tensor:
    """Some of them on several ranks, and some twice."""
    return torch.tensor([rank, 7 * step + rank, 7 * step + rank, 4000])


def optimizers_of(model, kind):
    return [kind([model.table.weight], lr=0.1), torch.optim.SGD(model.head.parameters(), lr=0.1)]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's Adagrad does not say what it wants
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
@pytest.mark.parametrize("how", [{}, {"op": hvd.Sum}, {"gradient_predivide_factor": 2.0}, {"sparse_as_dense": True}], ids=str)
def test_ranks_together_do_what_one_process_does(kind, how, rank, size):
    model, alone = Words(), Words()
    table, head = optimizers_of(model, kind)
    optimizers = [hvd.DistributedOptimizer(table, **how), hvd.DistributedOptimizer(head)]
    judges = optimizers_of(alone, kind)
    factor = size if how.get("op") is hvd.Sum else 1
    for step in range(4):
        for optimizer in [*optimizers, *judges]:
            optimizer.zero_grad()
        model(words(step, rank)).backward()
        (sum(alone(words(step, r)) for r in range(size)) / size).backward()
        alone.table.weight.grad = alone.table.weight.grad.coalesce() * factor
        for optimizer in [*optimizers, *judges]:
            optimizer.step()
        if size > 1 and not how.get("sparse_as_dense"):
            assert model.table.weight.grad.is_sparse
    torch.testing.assert_close(model.state_dict(), alone.state_dict())


def test_only_the_rows_that_were_used_travel(rank, size):
    model = Words()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    sent = []
    for step in range(4):
        before = hvdlite.metrics()["wire_bytes"]
        optimizer.zero_grad()
        model(words(step, rank)).backward()
        optimizer.step()
        sent.append(hvdlite.metrics()["wire_bytes"] - before)
    assert max(sent[1:]) < ROWS * 8 * 4 / 10, sent  # the first step cannot know yet


def test_a_rank_that_used_no_row_counts_as_zero(rank, size, odd):
    model, alone = Words(), Words()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    judge = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        judge.zero_grad()
        if not odd:
            model(words(step, rank)).backward()
        (sum(alone(words(step, r)) for r in range(size - 1)) / size).backward()
        optimizer.step()
        judge.step()
    torch.testing.assert_close(model.state_dict(), alone.state_dict())


def test_rows_that_nobody_used_leave_no_gradient(rank):
    model = Words()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        loss = model(words(step, rank)) if step == 0 else model.head(torch.ones(1, 8)).sum()
        loss.backward()
        optimizer.step()
        assert (model.table.weight.grad is None) is (step > 0)


def test_sparse_here_and_dense_there_is_dense(rank, size, odd):
    model, alone = Words(), Words()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model.table.sparse = not odd
    alone.table.sparse = False
    judge = torch.optim.SGD(alone.parameters(), lr=0.1)
    model(words(0, rank)).backward()
    (sum(alone(words(0, r)) for r in range(size)) / size).backward()
    optimizer.step()
    judge.step()
    assert not model.table.weight.grad.is_sparse
    torch.testing.assert_close(model.state_dict(), alone.state_dict())


def test_what_becomes_sparse_later_is_refused_with_a_remedy(rank, size):
    model = Words()
    model.table.sparse = False
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(words(0, rank)).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.table.sparse = True
    if size == 1:
        return
    with pytest.raises(hvdlite.SettingError, match=r"the gradient of 'table.weight' is sparse .*sparse_as_dense=True"):
        model(words(1, rank)).backward()


def test_a_model_of_nothing_but_an_embedding(rank, size):
    tables = [nn.Embedding(10, 3, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    for table in tables:
        hvd.broadcast_parameters(table.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(tables[0].parameters(), lr=0.1))
    judge = torch.optim.SparseAdam(tables[1].parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        judge.zero_grad()
        tables[0](torch.tensor([rank, step])).sum().backward()
        (sum(tables[1](torch.tensor([r, step])).sum() for r in range(size)) / size).backward()
        optimizer.step()
        judge.step()
    torch.testing.assert_close(tables[0].weight, tables[1].weight)


def test_compression_is_for_the_dense_ones(rank, size):
    model = Words()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), "topk:density=0.5")
    for step in range(3):
        optimizer.zero_grad()
        model(words(step, rank)).backward()
        optimizer.step()
    everyone = hvd.allgather_object([p.detach().tolist() for p in model.parameters()])
    assert all(theirs == everyone[0] for theirs in everyone)
