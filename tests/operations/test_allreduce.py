"""What allreduce does with the answers it is sent, alone and with any number of simulated ranks."""

import math

import ml_dtypes
import numpy as np
import pytest

from hvdlite import compression
from hvdlite.compression._simulate import play
from hvdlite.errors import SettingError
from hvdlite.negotiation import Vote
from hvdlite.operations import AllReduceOperation, Average, Max, Min, Product, ReduceOp, Sum, check_reducible


def reduce(arrays, op=Average, vote=Vote.ALL, **more):
    """``arrays[rank]``, reduced in place."""
    size = len(arrays)
    play([AllReduceOperation("x", [a] if isinstance(a, np.ndarray) else a, op, size, r, **more).program(vote) for r, a in enumerate(arrays)])
    return arrays


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_integer_averages_are_exact_and_truncated(dtype):
    top = np.iinfo(dtype).max
    values = [np.array([0, 1, 5, top - 1], dtype), np.array([0, 2, 2, 1], dtype)]
    reduce(values)
    assert values[0].tolist() == [0, 1, 3, top // 2]
    if np.iinfo(dtype).min < 0:
        values = [np.array([-7, -1, 7], dtype), np.array([0, 0, 0], dtype)]
        assert reduce(values)[0].tolist() == [-3, 0, 3]


def test_integers_keep_their_type_under_factors():
    assert reduce([np.array([10, -7, 3])], Sum, prescale=0.5)[0].tolist() == [5, -3, 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_factors(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    arrays = [np.array([1, 2, 3]).astype(kind) for _ in range(4)]
    reduce(arrays, Sum, prescale=2.0, postscale=0.25)
    assert [complex(v) for v in arrays[2]] == [2, 4, 6]
    assert arrays[0].dtype == kind


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_narrow_floats_are_summed_in_float32(dtype, size):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    arrays = [np.full((5, 3), 240).astype(kind) for _ in range(size)]
    assert all((a.astype(np.float32) == 240).all() for a in reduce(arrays))
    small = [np.array([256 if r == 0 and dtype != "float8_e4m3fn" else 1]).astype(kind) for r in range(size)]
    exact = np.float32(sum(float(a[0]) for a in small))
    assert reduce(small, Sum)[0].astype(np.float32) == exact.astype(kind).astype(np.float32)


@pytest.mark.parametrize("spec", ["fp16", "topk:density=1", "int8"])
def test_a_group_with_counters_is_compressed_only_where_it_holds_real_numbers(spec):
    size = 3
    groups = [[np.full((64, 64), r, np.float32), np.full((64, 64), 1_000_001 + r), np.full((64, 64), 1j * r, np.complex64)] for r in range(size)]
    play([AllReduceOperation("x", g, Average, size, r, compressor=compression.load(spec)).program(Vote.ALL) for r, g in enumerate(groups)])
    for real, counter, waves in groups:
        np.testing.assert_allclose(real, 1, rtol=0.02)
        assert (counter == 1_000_002).all()
        assert (waves == 1j).all()


def test_a_vote_of_nan_reaches_every_rank_and_no_compressor():
    compressor = [compression.load("topk") for _ in range(2)]
    groups = [[np.ones((64, 64), np.float32), np.full(3, r)] for r in range(2)]
    groups[0][0][0, 0] = math.nan
    operations = [AllReduceOperation("x", g, Sum, 2, r, compressor=compressor[r]) for r, g in enumerate(groups)]
    assert [o.vote() for o in operations] == [Vote.COMPLETE, Vote.ALL]
    play([o.program(Vote.COMPLETE) for o in operations])
    for real, counter in groups:
        assert np.isnan(real).all()
        assert (counter == 1).all()
    assert all(c.state_dict() == {} for c in compressor)


def test_plain_sums_carry_nan_by_themselves():
    array = np.array([math.nan, 1.0])
    assert AllReduceOperation("x", [array], Sum, 2, 0).vote() == Vote.ALL
    reduce([array, np.ones(2)], Sum)
    assert math.isnan(array[0])
    assert array[1] == 2


def test_missing_parts():
    layout = [("a", (2,)), ("b", (1,)), ("c", (3,))]
    missing = [["b", "c"], ["c"]]
    operations = [AllReduceOperation("g", [np.ones(6)], Sum, 2, r, layout=layout, missing=missing[r]) for r in range(2)]
    assert [o.vote() for o in operations] == [Vote.FINITE, Vote.FINITE]
    assert play([o.program(Vote.FINITE) for o in operations]) == [frozenset({"c"})] * 2
    assert play([AllReduceOperation("g", [np.ones(6)], Sum, 2, r, layout=layout).program(Vote.ALL) for r in range(2)]) == [frozenset()] * 2


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "bool"])
def test_every_shape(shape, dtype):
    arrays = [np.full(shape, r, dtype) for r in range(2)]
    reduce(arrays, Max)
    assert all((a == np.ones(shape, dtype)).all() and a.shape == shape for a in arrays)


def test_fused_operations_give_each_its_own():
    arrays = [[np.full((2, i + 1), r + i, d) for i, d in enumerate(["float32", "int64", "float32", "float16"])] for r in range(2)]
    operations = [[AllReduceOperation(f"x{i}", [a], Sum, 2, r) for i, a in enumerate(arrays[r])] for r in range(2)]
    assert len({o.fusion_key() for o in operations[0]}) == 1
    assert play([group[0].fused(group) for group in operations]) == [[frozenset()] * 4] * 2
    assert all((a == 2 * i + 1).all() for r in range(2) for i, a in enumerate(arrays[r]))


@pytest.mark.parametrize(
    ("dtype", "op", "reason"),
    [
        ("bool", Sum, "is boolean, and op=Sum of booleans has no meaning"),
        ("bool", Average, "is boolean"),
        ("bool", Product, "is boolean"),
        ("complex64", Min, "is complex, and op=Min needs an order"),
        ("complex128", Max, "is complex"),
    ],
)
def test_reductions_without_a_meaning_are_refused(dtype, op, reason):
    with pytest.raises(SettingError, match=reason):
        check_reducible("x", dtype, op, 1.0, 1.0)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_factors_are_finite(factor):
    with pytest.raises(SettingError, match=r"prescale_factor=.* a finite number is expected"):
        check_reducible("x", "float32", Sum, factor, 1.0)
    with pytest.raises(SettingError, match=r"postscale_factor="):
        check_reducible("x", "float32", Sum, 1.0, factor)


@pytest.mark.parametrize("op", [Min, Max, Product])
def test_only_means_and_sums_are_compressed(op):
    with pytest.raises(SettingError, match=f"fp16 cannot compress op={op.name}"):
        AllReduceOperation("x", [np.ones(3)], op, 1, 0, compressor=compression.load("fp16"))


def test_the_numbers_of_ops_are_horovods():
    assert {op.name: int(op) for op in ReduceOp} == {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
