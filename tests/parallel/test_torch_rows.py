"""The collectives on tensors that deal rows to ranks, and sparse tensors; tests/parallel/test_rows.py has the arithmetic."""

import pytest
import torch
from torch_values import COMPLEX, FLOATS, INTEGERS, OPS, combined, values

import hvdlite
import hvdlite.torch as hvd

FLOATS_8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def splits_of(rank, size):
    return [(rank * 2 + r * 3) % (size + 2) for r in range(size)]


def dealt(given, rank, size):
    """What alltoall gives this rank of everybody's ``given(rank)``."""
    return torch.cat([given(r).split(splits_of(r, size))[rank] for r in range(size)])


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS, torch.bool, *FLOATS_8], ids=str)
def test_alltoall_of_every_dtype(dtype, rank, size):
    def given(r):
        shape = (sum(splits_of(r, size)), 3)
        return values(torch.float32, r, shape).to(dtype) if dtype in FLOATS_8 else values(dtype, r, shape)

    received, lengths = hvd.alltoall(given(rank), torch.tensor(splits_of(rank, size), dtype=torch.int32))
    assert (received.dtype, lengths.dtype) == (dtype, torch.int32)
    assert lengths.tolist() == [splits_of(r, size)[rank] for r in range(size)]
    assert torch.equal(received.contiguous().view(torch.uint8), dealt(given, rank, size).contiguous().view(torch.uint8))


def test_alltoall_returns_splits_only_to_those_who_gave_some(rank, size):
    given = torch.full((2 * size,), float(rank))
    expected = torch.arange(float(size)).repeat_interleave(2)
    assert torch.equal(hvd.alltoall(given), expected)
    assert torch.equal(hvd.synchronize(hvd.alltoall_async(given)), expected)
    for splits in ([2] * size, torch.tensor([2] * size), torch.tensor([2] * size, dtype=torch.int32)):
        received, lengths = hvd.synchronize(hvd.alltoall_async(given, splits, name="alltoall.async"))
        assert torch.equal(received, expected)
        assert lengths.tolist() == [2] * size


def test_rows_of_tensors_that_are_not_contiguous(rank, size):
    def given(r):
        return values(torch.float32, r, (5, sum(splits_of(r, size)))).t()[:, ::2]

    assert torch.equal(hvd.alltoall(given(rank), splits_of(rank, size))[0], dealt(given, rank, size))
    matrix = values(torch.float32, rank, (7, 5)).t()
    share = hvd.reducescatter(matrix, op=hvd.Sum)
    assert torch.equal(share, hvd.allreduce(matrix, op=hvd.Sum).tensor_split(size)[rank])


@pytest.mark.parametrize(
    ("splits", "reason"),
    [
        (lambda size: [2] * size + [0], "have shape"),
        (lambda size: torch.full((size,), 2.0), "have dtype float32"),
        (lambda size: torch.full((size,), 3), "every row is expected to go to one rank"),
        (lambda size: [2 * size + 1] + [-1] * (size - 1) if size > 1 else [-2], "no negative number of rows"),
        (lambda size: torch.tensor(2), "have shape"),
    ],
    ids=["too many", "floats", "too large", "negative", "scalar"],
)
def test_splits_that_do_not_fit_are_refused_before_anything_is_sent(splits, reason, size):
    with pytest.raises(ValueError, match=reason):
        hvd.alltoall(torch.ones(2 * size), splits(size))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_reducescatter_is_the_share_of_an_allreduce(op, rank, size):
    for dtype in FLOATS + COMPLEX + INTEGERS:
        if dtype.is_complex and op in (hvd.Min, hvd.Max):
            continue
        given = values(dtype, rank, (2 * size + 1, 3))
        share = hvd.reducescatter(given, op=op)
        assert share.dtype == dtype
        torch.testing.assert_close(share, combined(dtype, op, size, (2 * size + 1, 3)).tensor_split(size)[rank])
        assert torch.equal(given, values(dtype, rank, (2 * size + 1, 3)))
        assert torch.equal(hvd.synchronize(hvd.reducescatter_async(given, op=op)), share)
        group = hvd.grouped_reducescatter([given, given[:1]], op=op)
        assert torch.equal(group[0], share)
        assert group[1].shape == (int(rank == 0), 3)
        assert all(torch.equal(a, b) for a, b in zip(hvd.synchronize(hvd.grouped_reducescatter_async([given, given[:1]], op=op)), group, strict=True))


class Halved:
    """A compressor written for Horovod."""

    @staticmethod
    def compress(tensor):
        return tensor.half() / 2, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx) * 2


def test_reducescatter_in_half_precision(rank, size):
    given = values(torch.float32, rank, (size, 3))
    expected = combined(torch.float32, hvd.Sum, size, (size, 3))[rank : rank + 1]
    for compression in (None, "none", hvd.Compression.none, "fp16", hvd.Compression.fp16, Halved):
        share = hvd.reducescatter(given, compression=compression, op=hvd.Sum)
        assert share.dtype == torch.float32
        assert torch.equal(share, expected)
        leaf = given.clone().requires_grad_()
        hvd.reducescatter(leaf, compression=compression).sum().backward()
        assert torch.equal(leaf.grad, torch.ones_like(leaf))
    before = hvd.metrics()["wire_bytes"]
    hvd.reducescatter(given, compression="fp16")
    assert hvd.metrics()["wire_bytes"] - before == 6 * (size - 1)
    with pytest.raises(ValueError, match="compression=topk cannot compress a reducescatter; none, fp16, or a class"):
        hvd.reducescatter(given, compression="topk")


def test_grouped_allgather_is_each_ones_allgather(rank):
    dtypes = [torch.float32, torch.bfloat16, torch.bool, torch.float32]
    group = [values(d, rank, (rank + i, i)) for i, d in enumerate(dtypes)]
    found = hvd.grouped_allgather(group)
    assert [t.dtype for t in found] == dtypes
    assert all(torch.equal(a, hvd.allgather(b)) for a, b in zip(found, group, strict=True))
    again = hvd.synchronize(hvd.grouped_allgather_async(group, name="gathered.together"))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_scalars_and_sparse_tensors_have_no_rows_to_deal():
    for call in (hvd.alltoall, hvd.reducescatter, lambda t: hvd.grouped_allgather([t]), lambda t: hvd.grouped_reducescatter([t])):
        with pytest.raises(ValueError, match="is a scalar"):
            call(torch.tensor(1.0))
        with pytest.raises(hvdlite.SettingError, match="sparse"):
            call(torch.eye(3).to_sparse())


# --- sparse ---


def sparse_values(dtype, rank, dense=()):
    """Rows 0, rank and rank again, and one for rank 0 alone: duplicates on a rank, and between ranks."""
    rows = torch.tensor([[0, rank + 1, rank + 1, *([9] if rank == 0 else [])]])
    return torch.sparse_coo_tensor(rows, values(dtype, rank, (rows.shape[1], *dense)), (10, *dense), check_invariants=True)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.name)
@pytest.mark.parametrize("dense", [(), (2, 3)])
def test_sparse_tensors_are_reduced_like_dense_ones(op, dense, rank, size):
    for dtype in [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.complex64]:
        given = sparse_values(dtype, rank, dense)
        found = hvd.sparse_allreduce_async(given, name="sparse", op=op)()
        assert (found.dtype, found.shape, found.is_coalesced()) == (dtype, given.shape, True)
        torch.testing.assert_close(found.to_dense(), hvd.allreduce(given.coalesce().to_dense(), op=op))
        assert all(torch.equal(found.to_dense(), theirs) for theirs in hvd.allgather_object(found.to_dense()))
        assert found._nnz() == len({0, 9, *range(1, size + 1)})


def test_a_sparse_handle_can_be_polled_and_synchronized(rank, size):
    empty = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (3, 4), check_invariants=True)
    given = torch.eye(3, 4).to_sparse() if rank == size - 1 else empty
    handle = hvd.sparse_allreduce_async(given, "sparse.handle", hvd.Sum)
    assert torch.equal(hvd.synchronize(handle).to_dense(), torch.eye(3, 4))
    assert hvd.poll(handle)
    assert torch.equal(handle().to_dense(), torch.eye(3, 4))


def test_halves_of_many_duplicates_are_added_in_float32(rank, size):
    """256 + 1 + 1 + ... in bfloat16 stays 256."""
    ones = torch.sparse_coo_tensor(torch.zeros(1, 65, dtype=torch.int64), torch.tensor([256.0, *[1.0] * 64]).bfloat16(), (1,), check_invariants=True)
    assert hvd.sparse_allreduce_async(ones, "sparse.halves").wait().to_dense() == 320


def test_sparse_tensors_that_cannot_be_reduced():
    with pytest.raises(hvdlite.SettingError, match="op=Max of a sparse tensor has no meaning"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "sparse.bad", hvd.Max)
    with pytest.raises(hvdlite.SettingError, match=r"a tensor in torch\.sparse_coo on the CPU is expected"):
        hvd.sparse_allreduce_async(torch.eye(2), "sparse.bad", hvd.Sum)
    with pytest.raises(hvdlite.SettingError, match="is boolean"):
        hvd.sparse_allreduce_async(torch.eye(2).bool().to_sparse(), "sparse.bad", hvd.Sum)


def test_sparse_tensors_of_other_shapes_are_named_before_anything_is_sent(odd, size):
    with pytest.raises(hvdlite.MismatchError, match=r"'emb' has a tensor 'indices in shape \(3, 3\)' on rank 0 but 'indices in shape \(4, 4\)' on rank"):
        hvd.sparse_allreduce_async(torch.eye(4 if odd else 3).to_sparse(), "emb")()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size
