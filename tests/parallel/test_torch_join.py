"""Ranks that have no more data: the others go on among themselves, and all come together again."""

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch_training import assert_equal_everywhere, batches, build_model, distributed, flat, loss_of, residuals, train

import hvdlite
import hvdlite.torch as hvd
from hvdlite.compression import names


def all_but(one, size):
    return [r for r in range(size) if r != one]


def while_away(one, rank, size, run):
    """``run(ranks that go on)`` on all ranks but one, which has joined; the last to join."""
    if rank != one or size == 1:
        run(all_but(one, size) if size > 1 else [0])
    last = hvd.join()
    assert len(set(hvd.allgather_object(last))) == 1
    return last


def test_every_reduction_is_that_of_the_ranks_that_go_on(rank, size):
    for one in range(size):

        def run(others):
            for dtype in (torch.float32, torch.float64, torch.int32, torch.float16, torch.bfloat16):
                x = torch.full((5, 7), rank + 1).to(dtype)
                total, number = sum(r + 1 for r in others), len(others)
                whole = not dtype.is_floating_point
                torch.testing.assert_close(hvd.allreduce(x), torch.full_like(x, total // number if whole else total / number))
                assert (hvd.allreduce(x, op=hvd.Sum) == total).all()
                assert (hvd.allreduce(x, op=hvd.Min) == min(others) + 1).all()
                assert (hvd.allreduce(x, op=hvd.Max) == max(others) + 1).all()
                assert (hvd.allreduce(x, op=hvd.Product) == int(np.prod([r + 1 for r in others]))).all()
            big = torch.full((100_000,), float(rank + 1))
            torch.testing.assert_close(hvd.allreduce(big, name="big"), torch.full_like(big, total / number))
            torch.testing.assert_close(hvd.allreduce(big, op=hvd.Adasum), torch.full_like(big, total / number))
            a, b = hvd.grouped_allreduce([torch.tensor([1.0 * rank]), torch.tensor([1])], op=hvd.Sum)
            assert (float(a), int(b)) == (total - number, number)
            assert hvd.allreduce(torch.tensor(True), op=hvd.Min)

        while_away(one, rank, size, run)


def test_rows_come_from_the_ranks_that_go_on_and_go_to_them_alone(rank, size):
    for one in range(size):

        def run(others):
            rows = torch.full((rank + 1, 2), float(rank))
            whole = torch.cat([torch.full((r + 1, 2), float(r)) for r in others])
            assert torch.equal(hvd.allgather(rows), whole)
            assert torch.equal(hvd.grouped_allgather([rows, rows])[1], whole)
            assert hvdlite.allgather_async(rows.numpy()).wait()[1] == [r + 1 if r in others else 0 for r in range(size)]
            received, counts = hvd.alltoall(torch.arange(size) + 10 * rank, splits=torch.ones(size, dtype=torch.int32))
            assert received.tolist() == [rank + 10 * r for r in others]
            assert counts.tolist() == [int(r in others) for r in range(size)]
            mine = hvd.reducescatter(torch.arange(2.0 * size), op=hvd.Average)
            assert mine.tolist() == [2.0 * rank, 2.0 * rank + 1]
            assert hvd.grouped_reducescatter([torch.ones(size)], op=hvd.Sum)[0].tolist() == [float(len(others))]
            assert hvd.allgather_object(rank) == others
            for root in others:
                assert hvd.broadcast(torch.tensor([rank]), root).tolist() == [root]
                assert hvd.broadcast_object(rank, root) == root
            sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (size,), check_invariants=False)
            expected = torch.zeros(size)
            expected[0] = 2.0 * len(others)
            expected[others] += 1.0
            torch.testing.assert_close(hvd.sparse_allreduce_async(sparse, "sparse", hvd.Average)().to_dense(), expected / len(others))
            hvd.barrier()

        while_away(one, rank, size, run)


@pytest.mark.usefixtures("odd")
def test_a_root_that_has_joined_is_an_error_on_every_rank(rank, size):
    def run(others):
        with pytest.raises(hvdlite.MismatchError, match=r"'x' is broadcast from rank 0, which has joined; a root that takes part is expected"):
            hvd.broadcast(torch.ones(2), 0, name="x")
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == len(others)

    while_away(0, rank, size, run)
    assert hvd.broadcast(torch.tensor([rank]), 0, name="x").tolist() == [0]


@pytest.mark.usefixtures("odd")
def test_one_after_the_other_and_the_last_is_named(rank, size):
    """Rank r makes r + 1 calls. Twice, with names that are known by then; and unnamed calls belong together afterwards."""
    for _ in range(2):
        for step in range(rank + 1):
            assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="x")) == size - step
            hvd.allreduce(torch.ones(3))
        assert hvd.join() == size - 1
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == size


def test_all_at_once(size):
    for _ in range(3):
        assert 0 <= hvd.join() < size


def test_what_was_submitted_before_is_done_first(rank, size):
    handles = [hvd.allreduce_async(torch.full((1000,), 1.0), op=hvd.Sum, name=f"before.{i}") for i in range(20)]
    hvd.join()
    assert all(float(hvd.synchronize(h)[0]) == size for h in handles)


@pytest.mark.usefixtures("odd")
def test_mismatches_among_those_that_go_on(rank, size):
    def run(others):
        if len(others) > 1:
            with pytest.raises(hvdlite.MismatchError, match=f"'x' has shape .* on rank {others[0]} but .* on rank {others[-1]}"):
                hvd.allreduce(torch.ones(3 if rank == others[-1] else 2), name="x")
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="x").tolist() == [len(others)] * 2

    while_away(0, rank, size, run)


@pytest.mark.usefixtures("odd")
def test_a_rank_that_has_joined_submits_nothing(rank, size):
    errors = []

    def other_thread():
        time.sleep(0.05)
        try:
            hvd.allreduce(torch.ones(1), name="late")
        except hvdlite.SettingError as error:
            errors.append(str(error))

    thread = threading.Thread(target=other_thread)
    if rank == 0:
        thread.start()
    else:
        time.sleep(0.3)
    hvd.join()
    if rank == 0:
        thread.join()
        assert "'late' on rank 0, which has called hvd.join()" in errors[0]


@pytest.mark.parametrize("spec", names())
def test_uneven_batches_train_to_the_end_with_every_compressor(spec, rank, size):
    """Rank r has 3 + 2 r batches. A step is that of the ranks that take part, and these stay alike to the last bit."""
    model = build_model()
    optimizer = distributed(model, lr=0.05, compression=spec)
    for epoch in range(2):
        weights = {}
        for step in range(3 + 2 * rank):
            train(model, optimizer, [100 * epoch + step], rank, size)
            weights[step] = flat(model)
        kept = residuals(optimizer)
        last = hvd.join()
        assert last == size - 1
        assert all(torch.equal(a, b) for a, b in zip(kept.values(), residuals(optimizer).values(), strict=True))
        everyone = hvd.allgather_object(weights)
        assert all(torch.equal(theirs[step], everyone[-1][step]) for theirs in everyone for step in theirs)
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        assert_equal_everywhere(model)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_is_the_mean_of_the_ranks_that_take_part(kind, rank, size):
    """Against one process that is given the batches of those ranks; in the first epoch, one rank has none at all."""
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model, kind, lr=0.01), kind(alone.parameters(), lr=0.01)
    counts = [2 * r for r in range(size)] if size > 1 else [2]
    for epoch in range(2):
        for step in range(max(counts)):
            present = [r for r in range(size) if step < counts[r]]
            judge.zero_grad()
            loss_of(alone, batches(10 * epoch + step, size)[present].flatten(0, 1)).backward()
            judge.step()
            if rank in present:
                train(model, optimizer, [10 * epoch + step], rank, size)
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        torch.testing.assert_close(flat(model), flat(alone), atol=1e-5, rtol=1e-5)


def test_adasum_leaves_them_out(rank, size):
    model = build_model()
    optimizer = distributed(model, lr=0.05, op=hvd.Adasum)
    train(model, optimizer, range(2 + rank), rank, size)
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    train(model, optimizer, range(2), rank, size)
    assert_equal_everywhere(model)


@pytest.mark.usefixtures("odd")
def test_ranks_that_do_not_share_what_the_last_one_learned_are_told(rank, size):
    model = build_model()
    optimizer = distributed(model)
    train(model, optimizer, range(1 + rank), rank, size)
    hvd.join()
    with pytest.raises(hvdlite.SettingError, match="6 of 6 parameters differ"):
        train(model, optimizer, [0], rank, size)
    hvd.broadcast_parameters(model.state_dict(), 0)


def test_a_nan_is_still_everybodys(rank, size):
    def run(others):
        x = torch.ones(64, 64)
        x[0, 0] = torch.nan if rank == others[0] else 1.0
        assert hvd.allreduce(x, compression="topk").isnan().all()

    while_away(0, rank, size, run)


def test_unused_parameters_and_sparse_gradients(rank, size):
    torch.manual_seed(0)
    table, layer = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)
    parameters = [*table.named_parameters(prefix="table"), *layer.named_parameters(prefix="layer")]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in parameters], lr=0.1), parameters)
    for step in range(2 + rank):
        optimizer.zero_grad()
        layer(table(torch.tensor([step, rank]))).square().mean().backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(parameters, root_rank=last)
    optimizer.zero_grad()
    table(torch.tensor([rank])).square().mean().backward()
    optimizer.step()
    assert_equal_everywhere(nn.ModuleList([table, layer]))
