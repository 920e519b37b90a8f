"""The collectives on tensors, against the same sum done locally: every rank can compute what every rank gave."""

import gc

import pytest
import torch
from torch_values import COMPLEX, FLOATS, INTEGERS, OPS, combined, values

import hvdlite
import hvdlite.torch as hvd


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
def test_allreduce_equals_the_local_computation(dtype, op, rank, size):
    if dtype.is_complex and op in (hvd.Min, hvd.Max):
        with pytest.raises(ValueError, match="complex"):
            hvd.allreduce(values(dtype, rank), op=op)
        return
    given = values(dtype, rank)
    result = hvd.allreduce(given, op=op)
    assert result.dtype == dtype
    torch.testing.assert_close(result, combined(dtype, op, size))
    assert torch.equal(given, values(dtype, rank))
    assert hvd.allreduce_(given, op=op) is given
    assert torch.equal(given, result)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_booleans_know_any_and_all_only(op, rank, size):
    given = values(torch.bool, rank)
    if op in (hvd.Min, hvd.Max):
        assert torch.equal(hvd.allreduce(given, op=op), combined(torch.bool, op, size))
    else:
        with pytest.raises(ValueError, match="boolean"):
            hvd.allreduce(given, op=op)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_factors_multiply_before_and_after(dtype, rank, size):
    result = hvd.allreduce(values(dtype, rank) * 4, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(result, combined(dtype, hvd.Sum, size) * 6)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4, 5)], ids=str)
def test_any_shape(shape, rank, size):
    given = values(torch.float32, rank, shape)
    torch.testing.assert_close(hvd.allreduce(given), combined(torch.float32, hvd.Average, size, shape))
    assert torch.equal(hvd.broadcast(given, size - 1), values(torch.float32, size - 1, shape))


STRIDED = {
    "transposed": lambda t: t.t(),
    "every other": lambda t: t[:, ::2],
    "channels last": lambda t: t.reshape(1, 5, 7, 1).expand(2, 5, 7, 2).contiguous(memory_format=torch.channels_last),
    "a column": lambda t: t[:, 3],
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_need_not_be_contiguous(make, dtype, rank, size):
    expected = make(combined(dtype, hvd.Sum, size))
    given = make(values(dtype, rank))
    strides = given.stride()
    assert torch.equal(hvd.allreduce(given, op=hvd.Sum), expected)
    assert torch.equal(given, make(values(dtype, rank)))
    hvd.allreduce_(given, op=hvd.Sum)
    assert torch.equal(given, expected)
    assert given.stride() == strides
    given = make(values(dtype, rank))
    hvd.broadcast_(given, size - 1)
    assert torch.equal(given, make(values(dtype, size - 1)))
    gathered = hvd.allgather(make(values(dtype, rank)))
    assert torch.equal(gathered, torch.cat([make(values(dtype, r)) for r in range(size)]))


def test_only_the_view_is_written(rank, size):
    whole = torch.full((4, 4), -1.0)
    hvd.allreduce_(whole[1:3, ::2], op=hvd.Sum)
    assert torch.equal(whole[1:3, ::2], torch.full((2, 2), -float(size)))
    assert (whole == -1).sum() == 16 - (4 if size > 1 else 0)


def test_lazy_conjugates_and_negatives_are_what_they_look_like(rank, size):
    given = values(torch.complex64, rank)
    expected = combined(torch.complex64, hvd.Sum, size)
    assert torch.equal(hvd.allreduce(given.conj(), op=hvd.Sum), expected.conj())
    assert torch.equal(hvd.allreduce(given.conj().imag, op=hvd.Sum), -expected.imag)
    in_place = given.clone().conj()
    hvd.allreduce_(in_place, op=hvd.Sum)
    assert torch.equal(in_place, expected.conj())
    assert torch.equal(hvd.allgather(given.conj()), torch.cat([values(torch.complex64, r).conj() for r in range(size)]))


def test_asynchronous_calls_may_be_waited_for_in_any_order(rank, size):
    handles = [hvd.allreduce_async(values(torch.float32, rank) * i, op=hvd.Sum, name=f"any.order.{i}") for i in range(20)]
    for i in reversed(range(20)):
        assert torch.equal(hvd.synchronize(handles[i]), combined(torch.float32, hvd.Sum, size) * i)
        assert hvd.poll(handles[i])
    assert all(hvd.poll(h) for h in handles)


def test_poll_waits_for_the_last_rank(rank, size):
    """A handle is not done before every rank has submitted."""
    mine = torch.ones(3)
    if rank == size - 1 and size > 1:
        hvd.allreduce(torch.zeros(1), name="poll.gate")
        handle = hvd.allreduce_async_(mine, op=hvd.Sum, name="poll.late")
    else:
        handle = hvd.allreduce_async_(mine, op=hvd.Sum, name="poll.late")
        assert hvd.poll(handle) == (size == 1)
        hvd.allreduce(torch.zeros(1), name="poll.gate")
    assert hvd.synchronize(handle) is mine
    assert torch.equal(mine, torch.full((3,), float(size)))


def test_a_handle_keeps_its_tensor_alive(rank, size):
    handle = hvd.allreduce_async(torch.full((100_000,), float(rank)), op=hvd.Max, name="kept")
    gc.collect()
    torch.full((100_000,), -1.0)
    assert (hvd.synchronize(handle) == size - 1).all()


def test_groups_are_reduced_together_whatever_they_mix(rank, size):
    dtypes = [torch.float32, torch.float16, torch.int32, torch.float32]
    given = [values(d, rank, (i + 1, 3)) for i, d in enumerate(dtypes)]
    expected = [combined(d, hvd.Sum, size, (i + 1, 3)) for i, d in enumerate(dtypes)]
    for result in (hvd.grouped_allreduce(given, op=hvd.Sum), hvd.synchronize(hvd.grouped_allreduce_async(given, op=hvd.Sum, name="mixed"))):
        assert [r.dtype for r in result] == dtypes
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))
    in_place = [t.clone() for t in given]
    returned = hvd.grouped_allreduce_(in_place, op=hvd.Sum)
    assert all(a is b for a, b in zip(returned, in_place, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(in_place, expected, strict=True))
    assert hvd.grouped_allreduce([], op=hvd.Sum) == []


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS, torch.bool], ids=str)
def test_allgather_of_other_lengths(dtype, rank, size):
    """Rank r gives r rows; rank 0 none."""
    gathered = hvd.allgather(values(dtype, rank, (rank, 3)))
    assert gathered.dtype == dtype
    assert torch.equal(gathered, torch.cat([values(dtype, r, (r, 3)) for r in range(size)]))
    gathered.add_(0) if dtype is not torch.bool else gathered.logical_not_()  # the result is the caller's own


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16], ids=str)
def test_broadcast_from_every_root(dtype, rank, size):
    def of(r):
        return values(torch.float32, r).to(dtype) if dtype.itemsize == 1 and dtype.is_floating_point else values(dtype, r)

    for root in range(size):
        given = of(rank)
        assert torch.equal(hvd.broadcast(given, root).float(), of(root).float()) if not dtype.is_complex else torch.equal(hvd.broadcast(given, root), of(root))
        assert hvd.broadcast_(given, root) is given
        assert torch.equal(given.view(torch.uint8), of(root).view(torch.uint8))


def test_a_scalar_cannot_be_gathered_and_says_so():
    with pytest.raises(ValueError, match="scalar"):
        hvd.allgather(torch.tensor(1.0))


def test_a_root_that_does_not_exist_is_named(size):
    with pytest.raises(ValueError, match=f"root_rank={size}"):
        hvd.broadcast(torch.zeros(1), size)


def test_sparse_tensors_are_refused_before_anything_is_sent():
    sparse = torch.eye(3).to_sparse()
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda t: hvd.broadcast(t, 0)):
        with pytest.raises(hvdlite.SettingError, match="sparse"):
            call(sparse)
