"""Reduction to shares, against the allreduce of the same arrays, for any number of simulated ranks."""

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from hvdlite.compression._simulate import play
from hvdlite.negotiation import Vote
from hvdlite.operations import (
    Adasum,
    AllReduceOperation,
    Average,
    GroupedReduceScatterOperation,
    Max,
    Min,
    Product,
    ReduceOp,
    ReduceScatterOperation,
    Sum,
    shared_rows,
)

TYPES = ["uint8", "int32", "int64", "float16", ml_dtypes.bfloat16, "float32", "float64", "complex64"]


def scatter(arrays, op, **more):
    return play([ReduceScatterOperation("x", a, op, len(arrays), r, **more).program(Vote.ALL) for r, a in enumerate(arrays)])


@given(num_rows=st.integers(0, 40), num_ranks=st.integers(1, 9))
def test_every_row_belongs_to_one_rank_and_the_first_ranks_have_one_more(num_rows, num_ranks):
    shares = shared_rows(num_rows, num_ranks)
    assert [i for s in shares for i in range(num_rows)[s]] == list(range(num_rows))
    lengths = [s.stop - s.start for s in shares]
    assert lengths == [num_rows // num_ranks + (r < num_rows % num_ranks) for r in range(num_ranks)]


@given(
    size=st.integers(1, 5),
    rows=st.integers(0, 7),
    rest=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from(TYPES),
    op=st.sampled_from([op for op in ReduceOp if op is not Adasum]),
    factors=st.sampled_from([(1.0, 1.0), (0.5, 3.0)]),
)
def test_the_shares_together_are_the_allreduce_bit_for_bit(size, rows, rest, dtype, op, factors):
    if np.dtype(dtype).kind == "c" and op in (Min, Max):
        return
    rng = np.random.default_rng(rows)
    arrays = [(rng.standard_normal((rows, *rest)) * 30).astype(np.int64 if np.dtype(dtype).kind in "iu" else np.float32).astype(dtype) for _ in range(size)]
    kept = [a.copy() for a in arrays]
    prescale, postscale = factors
    with np.errstate(all="ignore"):
        shares = scatter(arrays, op, prescale=prescale, postscale=postscale)
        assert all(a.tobytes() == k.tobytes() for a, k in zip(arrays, kept, strict=True))
        play([AllReduceOperation("x", [k], op, size, r, prescale, postscale).program(Vote.ALL) for r, k in enumerate(kept)])
    assert [s.shape for s in shares] == [(part.stop - part.start, *rest) for part in shared_rows(rows, size)]
    assert all(s.dtype == np.dtype(dtype) for s in shares)
    assert np.concatenate(shares).tobytes() == kept[0].tobytes()
    assert not any(np.shares_memory(s, a) for s in shares for a in arrays)


def test_booleans_know_any_and_all():
    arrays = [np.array([True, False, True]), np.array([False, False, True])]
    assert [s.tolist() for s in scatter(arrays, Max)] == [[True, False], [True]]
    assert [s.tolist() for s in scatter(arrays, Min)] == [[False, False], [True]]
    assert scatter(arrays, Max)[0].dtype == bool


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_narrow_floats_are_added_in_float32(dtype):
    arrays = [np.full((4, 2), 40000).astype(dtype) for _ in range(4)]
    for share in scatter(arrays, Average):
        assert np.array_equal(share, arrays[0][:1])
    tiny = [np.array([256 if r == 0 else 0.75]).astype(dtype) for r in range(4)]
    assert scatter(tiny, Sum)[0] == np.array([258.25]).astype(dtype)


@given(size=st.integers(1, 4), members=st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 6)), max_size=4))
def test_a_group_is_its_members_alone(size, members):
    groups = [[np.full((n, 3), 1 + r + i).astype(d) for i, (d, n) in enumerate(members)] for r in range(size)]
    results = play([GroupedReduceScatterOperation("x", g, Sum, size, r).program(Vote.ALL) for r, g in enumerate(groups)])
    alone = [scatter([g[i] for g in groups], Sum) for i in range(len(members))]
    for rank, result in enumerate(results):
        assert [a.tobytes() for a in result] == [alone[i][rank].tobytes() for i in range(len(members))]
        assert [a.shape for a in result] == [alone[i][rank].shape for i in range(len(members))]


def test_ranks_agree_on_everything_that_changes_the_result():
    given_ = np.ones((4, 3), np.float32)
    same = ReduceScatterOperation("x", given_, Sum, 2, 0).signature
    assert same == ReduceScatterOperation("x", given_ * 2, Sum, 2, 1).signature
    others = [
        ReduceScatterOperation("x", given_, Product, 2, 0),
        ReduceScatterOperation("x", given_[:3], Sum, 2, 0),
        ReduceScatterOperation("x", given_, Sum, 2, 0, prescale=2.0),
        ReduceScatterOperation("x", given_, Sum, 2, 0, postscale=2.0),
        ReduceScatterOperation("x", given_.astype(np.float64), Sum, 2, 0),
        GroupedReduceScatterOperation("x", [given_], Sum, 2, 0),
    ]
    assert all(o.signature != same for o in others)
