"""Concatenation, of one array and of groups, for any number of simulated ranks."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hvdlite.compression._simulate import play
from hvdlite.negotiation import Vote
from hvdlite.operations import AllGatherOperation, GroupedAllGatherOperation


def gather(operations):
    return play([o.program(Vote.ALL) for o in operations])


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_gathers_with_other_lengths(shape):
    arrays = [np.full((r, *shape), r, np.float32) for r in range(3)]
    for whole, lengths in gather([AllGatherOperation("g", a, 3) for a in arrays]):
        assert lengths == [0, 1, 2]
        assert np.array_equal(whole, np.concatenate(arrays))
        assert whole.dtype == np.float32


MEMBERS = st.lists(st.tuples(st.sampled_from(["int8", "float16", "float64", "bool", "complex64"]), st.sampled_from([(), (0,), (3,)])), max_size=5)


@given(size=st.integers(1, 4), members=MEMBERS, data=st.data())
def test_a_group_is_its_members_gathered_alone(size, members, data):
    rows = [[data.draw(st.integers(0, 4)) for _ in members] for _ in range(size)]
    groups = [[np.full((n, *rest), 1 + r + i).astype(d) for i, (n, (d, rest)) in enumerate(zip(rows[r], members, strict=True))] for r in range(size)]
    results = gather([GroupedAllGatherOperation("g", g, size) for g in groups])
    for result in results:
        assert len(result) == len(members)
        for i, (whole, lengths) in enumerate(result):
            assert lengths == [rows[r][i] for r in range(size)]
            assert whole.tobytes() == np.concatenate([g[i] for g in groups]).tobytes()
            assert (whole.dtype, whole.shape[1:]) == (groups[0][i].dtype, groups[0][i].shape[1:])
            assert not any(np.shares_memory(whole, a) for g in groups for a in g)
