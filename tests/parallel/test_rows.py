"""The collectives that deal rows to ranks, on however many run this, against what every rank can compute alone."""

import ml_dtypes
import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.operations import shared_rows

TYPES = ["uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float8_e4m3fn", "float32", "float64", "complex64", "bool"]


def numpy_type(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)


def rows(rank: int, number: int, dtype: str, rest=(3,)) -> np.ndarray:
    whole = np.random.default_rng(200 + rank).integers(0, 2, (number, *rest))
    return whole.astype(numpy_type(dtype))


def splits_of(rank: int, size: int) -> list[int]:
    """No two ranks deal alike, and some get nothing."""
    return [(rank * 2 + r * 3) % (size + 2) for r in range(size)]


# Rows of 8 bytes, so many times as many: what fits into a library's collective, what travels as messages, what no staging buffer holds.
LENGTHS = {"small": 1, "large": 5_000, "larger than staging": 500_000}


@pytest.mark.parametrize("times", LENGTHS.values(), ids=LENGTHS)
def test_rows_of_every_size_arrive_where_they_were_sent(times, rank, size):
    def given(r):
        return np.arange(sum(splits_of(r, size)) * times, dtype=np.int64) + 10_000_000 * r

    received, lengths = hvd.alltoall(given(rank), [n * times for n in splits_of(rank, size)], name=f"rows.{times}")
    assert lengths == [splits_of(r, size)[rank] * times for r in range(size)]
    expected = [np.split(given(r), np.cumsum(splits_of(r, size))[:-1] * times)[rank] for r in range(size)]
    assert np.array_equal(received, np.concatenate(expected))


def test_rows_of_every_dtype_and_shape(rank, size):
    for dtype in TYPES:
        for rest in ((), (3,), (2, 0), (2, 2)):
            received, lengths = hvd.alltoall(rows(rank, sum(splits_of(rank, size)), dtype, rest), np.array(splits_of(rank, size), np.int32))
            assert lengths == [splits_of(r, size)[rank] for r in range(size)]
            expected = [np.split(rows(r, sum(splits_of(r, size)), dtype, rest), np.cumsum(splits_of(r, size))[:-1])[rank] for r in range(size)]
            assert received.tobytes() == np.concatenate(expected).tobytes()
            assert (received.dtype, received.shape[1:]) == (numpy_type(dtype), rest)


def test_without_splits_everybody_gets_as_many(rank, size):
    received, lengths = hvd.alltoall(np.repeat(np.arange(size), rank + 1))
    assert lengths == list(range(1, size + 1))
    assert received.tolist() == [rank] * sum(lengths)
    assert hvd.alltoall(np.zeros((0, 4)))[0].shape == (0, 4)


def test_rows_that_no_rank_has_for_any_other(rank, size):
    mine = [3 if r == rank else 0 for r in range(size)]
    received, lengths = hvd.alltoall(np.full(3, rank), mine)
    assert lengths == mine
    assert received.tolist() == [rank] * 3


@pytest.mark.parametrize("op", [op for op in hvd.ReduceOp if op is not hvd.Adasum], ids=lambda op: op.name)
def test_a_share_is_that_of_the_allreduce(op, rank, size):
    for dtype in TYPES:
        if dtype == "float8_e4m3fn" or (dtype == "bool" and op not in (hvd.Min, hvd.Max)) or (dtype.startswith("complex") and op in (hvd.Min, hvd.Max)):
            continue
        for number in (0, 1, size, 2 * size + 1):
            given = rows(rank, number, dtype)
            share = hvd.reducescatter(given, op=op)
            assert np.array_equal(share, hvd.allreduce(given, op=op)[shared_rows(number, size)[rank]])
            assert share.dtype == given.dtype


@pytest.mark.parametrize("times", LENGTHS.values(), ids=LENGTHS)
def test_shares_of_every_size(times, rank, size):
    number = size * times + 1
    share = hvd.reducescatter(np.arange(number, dtype=np.float64) + rank, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25, name=f"shares.{times}")
    assert np.array_equal(share, (np.arange(number) * size + size * (size - 1) / 2)[shared_rows(number, size)[rank]] / 2)


def test_halves_do_not_overflow(size):
    for dtype in ("float16", "bfloat16"):
        given = np.full((size, 2), 40000).astype(numpy_type(dtype))
        assert hvd.reducescatter(given).tobytes() == given[:1].tobytes()


def test_groups_are_one_unit(rank, size):
    group = [rows(rank, n, d) for n, d in ((size, "float32"), (2 * size + 1, "float16"), (0, "int64"), (1, "float32"))]
    alone = [hvd.reducescatter(a, op=hvd.Sum) for a in group]
    assert [a.tobytes() for a in hvd.grouped_reducescatter(group, op=hvd.Sum)] == [a.tobytes() for a in alone]
    gathered = [rows(rank, rank * i, d, (i,)) for i, d in enumerate(TYPES)]
    assert [a.tobytes() for a in hvd.grouped_allgather(gathered)] == [hvd.allgather(a).tobytes() for a in gathered]
    assert hvd.grouped_allgather([]) == hvd.grouped_reducescatter([]) == []


def test_all_kinds_in_flight_together(rank, size):
    """Submitted in another order on every rank; each kind twenty times."""
    kinds = {
        "deal": lambda n: hvd.alltoall_async(np.full(size * 1000, rank), name=n),
        "share": lambda n: hvd.reducescatter_async(np.full((size, 3000), rank, np.float32), op=hvd.Sum, name=n),
        "gather": lambda n: hvd.grouped_allgather_async([np.full(rank, rank), np.full(3000, rank)], name=n),
        "reduce": lambda n: hvd.allreduce_async([np.full(30_000, rank, np.float64)], op=hvd.Sum, name=n),
    }
    names = [f"rows.{kind}.{i}" for i in range(20) for kind in kinds]
    np.random.default_rng(rank).shuffle(names)
    handles = {n: kinds[n.split(".")[1]](n) for n in names}
    everyone = np.arange(size)
    for name, handle in handles.items():
        result = handle.wait()
        if ".deal." in name:
            assert np.array_equal(result[0], np.repeat(everyone, 1000))
        elif ".share." in name:
            assert (result == everyone.sum()).all()
            assert result.shape == (1, 3000)
        elif ".gather." in name:
            assert np.array_equal(result[0][0], np.repeat(everyone, everyone))
            assert np.array_equal(result[1][0], np.repeat(everyone, 3000))


def test_every_byte_that_is_sent_is_counted(rank, size):
    """What goes to others, and the splits: 8 bytes for each pair of ranks."""
    before = hvd.metrics()["wire_bytes"]
    hvd.alltoall(np.zeros(7, np.uint8), [7 if r == (rank + 1) % size else 0 for r in range(size)])
    assert hvd.metrics()["wire_bytes"] - before == (7 if size > 1 else 0) + 8 * size * (size - 1)
