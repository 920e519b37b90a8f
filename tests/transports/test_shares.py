"""Who combines what, and what comes out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.transports._shares import combine, shares


@given(size=st.integers(0, 5000), ranks=st.integers(1, 20))
def test_shares_follow_each_other_and_leave_nothing_out(size, ranks):
    parts = shares(size, ranks)
    assert [i for part in parts for i in range(size)[part]] == list(range(size))
    assert len(parts) == ranks
    assert max((len(range(size)[part]) for part in parts), default=0) <= -(-size // ranks) + 15  # equal, but for whole cache lines


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("op", ["sum", "min", "max", "product"])
def test_the_order_is_that_of_the_ranks_and_outputs_may_be_inputs(op, dtype):
    rng = np.random.default_rng(0)
    inputs = [(8 * rng.standard_normal(70_001)).astype(dtype) for _ in range(3)]
    ufunc = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}[op]
    expected = ufunc(ufunc(inputs[0], inputs[1]), inputs[2])
    combine(inputs, op, 1.0, inputs)
    assert {i.tobytes() for i in inputs} == {expected.tobytes()}


@pytest.mark.parametrize("op", ["sum", "max"])
def test_the_factor_comes_last(op):
    inputs = [np.full(5, 2.0**127, np.float32), np.full(5, 2.0**126, np.float32)]
    out = np.empty(5, np.float32)
    combine(inputs, op, 0.25, [out])
    assert out[0] == (2.0**127 + 2.0**126 if op == "sum" else 2.0**127) / 4
