"""Rows dealt to the ranks, for any number of simulated ones."""

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from hvdlite.compression._simulate import play
from hvdlite.errors import SettingError
from hvdlite.negotiation import Vote
from hvdlite.operations import AllToAllOperation

TYPES = ["uint8", "int64", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "float64", "complex128", "bool"]


@given(size=st.integers(1, 5), dtype=st.sampled_from(TYPES), rest=st.sampled_from([(), (3,), (2, 0), (2, 2)]), data=st.data())
def test_every_row_arrives_where_it_was_sent(size, dtype, rest, data):
    splits = [[data.draw(st.integers(0, 4)) for _ in range(size)] for _ in range(size)]
    rng = np.random.default_rng(size)
    arrays = [rng.integers(0, 9, (sum(row), *rest)).astype(dtype) for row in splits]
    kept = [a.copy() for a in arrays]
    results = play([AllToAllOperation("x", a, s, size, r).program(Vote.ALL) for r, (a, s) in enumerate(zip(arrays, splits, strict=True))])
    cut = [np.split(a, np.cumsum(s)[:-1]) for a, s in zip(kept, splits, strict=True)]
    for receiver, (received, lengths) in enumerate(results):
        assert lengths == [row[receiver] for row in splits]
        assert received.tobytes() == np.concatenate([parts[receiver] for parts in cut]).tobytes()
        assert (received.dtype, received.shape) == (np.dtype(dtype), (sum(lengths), *rest))
        assert not any(np.shares_memory(received, a) for a in arrays)
    assert all(a.tobytes() == k.tobytes() for a, k in zip(arrays, kept, strict=True))


@given(size=st.integers(1, 5), rows=st.integers(0, 3))
def test_sending_back_what_was_received_gives_what_there_was(size, rows):
    arrays = [np.arange(rows * size * 2.0).reshape(rows * size, 2) + 100 * r for r in range(size)]
    there = play([AllToAllOperation("x", a, None, size, r).program(Vote.ALL) for r, a in enumerate(arrays)])
    back = play([AllToAllOperation("x", a, n, size, r).program(Vote.ALL) for r, (a, n) in enumerate(there)])
    assert all(np.array_equal(a, b) for a, (b, _) in zip(arrays, back, strict=True))


def test_first_dimensions_and_splits_need_not_be_agreed_on():
    first = AllToAllOperation("x", np.ones((4, 3)), [1, 3], 2, 0)
    second = AllToAllOperation("x", np.ones((2, 3)), None, 2, 1)
    assert first.signature == second.signature
    assert first.signature != AllToAllOperation("x", np.ones((4, 2)), None, 2, 0).signature


@pytest.mark.parametrize(
    ("splits", "reason"),
    [
        ([2, 2], "splits of 'x' are [2, 2], together 4, and it has 5 rows; every row is expected to go to one rank"),
        ([4, 2], "splits of 'x' are [4, 2], together 6, and it has 5 rows"),
        ([7, -2], "splits of 'x' are [7, -2]; no negative number of rows is expected"),
        ([5], "splits of 'x' have shape (1,); one number for each of the 2 ranks is expected"),
        ([], "splits of 'x' have shape (0,)"),
        ([[2, 3]], "splits of 'x' have shape (1, 2)"),
        (5, "splits of 'x' have shape ()"),
        ([2.0, 3.0], "splits of 'x' have dtype float64; whole numbers of rows are expected"),
        (np.array([True, False]), "splits of 'x' have dtype bool"),
        (None, "'x' has 5 rows, which 2 ranks cannot share equally; a multiple of 2 is expected; pass splits"),
    ],
    ids=str,
)
def test_splits_that_do_not_fit(splits, reason):
    with pytest.raises(SettingError) as caught:
        AllToAllOperation("x", np.ones((5, 3)), splits, 2, 0)
    assert reason in str(caught.value)
