"""The array operations: numpy is the definition, torch agrees with it."""

import ml_dtypes
import numpy as np
import pytest

from hvdlite.arrays import NARROW_FLOATS, bits, dtype_name, is_floating, nbytes, numpy_dtype, ops

torch = pytest.importorskip("torch")

KINDS = {"numpy": np.asarray, "torch": lambda array: ops(torch.empty(0)).from_numpy(array)}
DTYPES = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "int64", "bool"]


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def numpy_of(array) -> np.ndarray:
    return ops(array).to_numpy(array)


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (0,)])
def test_every_dtype_goes_there_and_back(dtype, shape):
    array = np.ones(shape, numpy_dtype(dtype))
    tensor = ops(torch.empty(0)).from_numpy(array)
    assert dtype_name(tensor) == dtype_name(array) == dtype
    assert tuple(tensor.shape) == shape
    assert nbytes(tensor) == nbytes(array)
    back = numpy_of(tensor)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_arrays(dtype, make):
    xp = ops(make(noise(1)))
    zeros, empty = xp.zeros((2, 3), dtype), xp.empty((4,), dtype)
    assert (dtype_name(zeros), tuple(zeros.shape)) == (dtype, (2, 3))
    assert (dtype_name(empty), tuple(empty.shape)) == (dtype, (4,))
    assert not numpy_of(zeros).astype(np.float32).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_cast_rounds_alike(dtype):
    values = np.concatenate([noise(1000), 1e-6 * noise(1000), [0.0, -0.0, 65519.0, 65521.0, 1e30, 2.0**-149, np.inf, -np.inf]]).astype(np.float32)
    there = [ops(v).cast(v, dtype) for v in (make(values) for make in KINDS.values())]
    assert numpy_of(there[0]).tobytes() == numpy_of(there[1]).tobytes()
    assert [dtype_name(v) for v in there] == [dtype, dtype]


def test_a_cast_to_its_own_type_is_free(make):
    array = make(noise(3))
    assert ops(array).cast(array, "float32") is array


def test_concat(make):
    joined = ops(make(noise(1))).concat([make(np.ones((2, 2), np.float32)), make(np.zeros(1, np.float32))])
    assert numpy_of(joined).tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64"])
def test_bytes_are_a_view(dtype, make):
    array = make(np.arange(6).astype(numpy_dtype(dtype)).reshape(2, 3))
    xp = ops(array)
    raw = xp.as_bytes(array)
    assert (dtype_name(raw), tuple(raw.shape)) == ("uint8", (nbytes(array),))
    again = xp.from_bytes(raw, dtype, (2, 3))
    assert dtype_name(again) == dtype
    raw[:] = 0
    assert not numpy_of(again).astype(np.float32).any()
    assert not numpy_of(array).astype(np.float32).any()


def test_bytes_that_are_not_aligned(make):
    raw = make(np.arange(9, dtype=np.uint8))
    assert numpy_of(ops(raw).from_bytes(raw[1:], "float32", (2,))).tobytes() == bytes(range(1, 9))


def test_bits_are_a_view(make):
    array = make(np.array([1.0, -2.0], np.float32))
    word = bits(array)
    assert numpy_of(word).tolist() == [0x3F800000, 0xC0000000 - 2**32]
    word &= 0x7FFFFFFF
    assert numpy_of(array).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float32", "float64", *sorted(NARROW_FLOATS - {"float8_e4m3fn"})])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_all_finite(dtype, bad, make):
    values = np.ones(1000, numpy_dtype(dtype))
    assert ops(make(values)).all_finite(make(values))
    values[-1] = bad
    assert not ops(make(values)).all_finite(make(values))


def test_all_finite_of_values_whose_squares_are_not(make):
    values = make(np.full(10, 3e38, np.float32))
    assert ops(values).all_finite(values)


def test_all_finite_of_what_cannot_be_otherwise(make):
    for values in (np.ones(3, np.int32), np.zeros(0, np.float32), np.ones(2, bool)):
        assert ops(make(values)).all_finite(make(values))


def test_absmax(make):
    for values, expected in (([1, -3, 2], 3), ([-1], 1), ([], 0), ([0.0], 0)):
        array = make(np.array(values, np.float32))
        assert ops(array).absmax(array) == expected


def test_block_absmax_is_new_memory(make):
    array = make(np.array([[1, -3], [-0.0, 0.0], [2, 1]], np.float32))
    top = ops(array).block_absmax(array)
    assert numpy_of(top).tolist() == [3, 0, 2]
    top += 1
    assert numpy_of(array).tolist() == [[1, -3], [0, 0], [2, 1]]


def test_rint_rounds_halves_to_even(make):
    array = make(np.array([0.5, 1.5, -0.5, -1.5, 2.4], np.float32))
    assert numpy_of(ops(array).rint(array)).tolist() == [0, 2, 0, -2, 2]


def test_where(make):
    array = make(np.array([1, 2], np.float32))
    chosen = ops(array).where(array > 1, array, 0.0)
    assert numpy_of(chosen).tolist() == [0, 2]
    assert dtype_name(chosen) == "float32"


@pytest.mark.parametrize("k", [1, 3, 10, 999, 1000, 1001])
def test_largest(k, make):
    values = np.round(noise(1000) * 4)  # many ties
    array = make(values)
    index, picked = ops(array).largest(array, k)
    expected = sorted(sorted(range(1000), key=lambda i: (-abs(values[i]), i))[:k])
    assert dtype_name(index) == "int32"
    assert numpy_of(index).tolist() == expected
    assert numpy_of(picked).tolist() == values[expected].tolist()


@pytest.mark.parametrize(("op", "expected"), [("sum", [5, 1]), ("min", [2, -1]), ("max", [3, 2]), ("product", [6, -2])])
def test_combine(op, expected, make):
    into, other = make(np.array([2, -1], np.float32)), make(np.array([3, 2], np.float32))
    assert ops(into).combine(op, into, other) is into
    assert numpy_of(into).tolist() == expected


def test_add_at(make):
    out = make(np.ones(4, np.float32))
    ops(out).add_at(out, make(np.array([0, 3], np.int32)), make(np.array([5, 6], np.float32)))
    assert numpy_of(out).tolist() == [6, 1, 1, 7]


def test_matmul_writes_into_views(make):
    left, right, out = make(noise(6).reshape(2, 3)), make(noise(12).reshape(4, 3)), make(np.zeros(10, np.float32))
    ops(out).matmul(left, right.T, out[1:9].reshape(2, 4))
    expected = noise(6).reshape(2, 3) @ noise(12).reshape(4, 3).T
    np.testing.assert_allclose(numpy_of(out)[1:9].reshape(2, 4), expected, rtol=1e-5)
    assert numpy_of(out)[[0, 9]].tolist() == [0, 0]


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_orthonormal(rank, make):
    stack = noise(3 * 20 * rank).reshape(3, 20, rank)
    stack[1] = 0
    stack[2] = stack[2][:, :1]  # all columns alike
    array = make(stack)
    q = numpy_of(ops(array).orthonormal(array)).astype(np.float64)
    for matrix in q:
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(rank), atol=1e-5)
    np.testing.assert_allclose(q[0] @ (q[0].T @ stack[0]), stack[0], atol=1e-5)
    np.testing.assert_allclose(q[2] @ (q[2].T @ stack[2]), stack[2], atol=1e-5)


def test_names_of_dtypes():
    assert numpy_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert [is_floating(d) for d in ("float32", "bfloat16", "float8_e5m2", "int8", "bool")] == [True, True, True, False, False]


def test_other_things_are_no_arrays():
    with pytest.raises(TypeError, match=r"^cannot work on a list; expected a numpy array or a torch tensor; convert it first$"):
        ops([1, 2])
