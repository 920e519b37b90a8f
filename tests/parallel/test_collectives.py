"""The array-level collectives, on however many ranks run this, against numpy."""

import ml_dtypes
import numpy as np
import pytest

import hvdlite as hvd
from hvdlite import compression

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
NARROW = ["float16", "bfloat16"]
FLOATS = [*NARROW, "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
OPS = {hvd.Sum: np.add, hvd.Average: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}
CASES = [(d, op) for d in [*INTEGERS, *FLOATS] for op in OPS]
CASES += [(d, op) for d in COMPLEX for op in (hvd.Sum, hvd.Average, hvd.Product)] + [("bool", op) for op in (hvd.Min, hvd.Max)]


def numpy_type(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)


def values(rank: int, dtype: str, shape=(3, 5)) -> np.ndarray:
    """Small whole numbers, which every type holds exactly, and their products too."""
    rng = np.random.default_rng(100 + rank)
    whole = rng.integers(0, 2 if dtype == "bool" else 4, shape)
    if dtype.startswith("complex"):
        return (whole + 1j * rng.integers(0, 3, shape)).astype(dtype)
    return (whole if dtype.startswith(("u", "bool")) else whole - 1).astype(numpy_type(dtype))


@pytest.mark.parametrize(("dtype", "op"), CASES, ids=lambda v: getattr(v, "name", v))
def test_every_dtype_and_op_is_numpys(dtype, op, rank, size):
    wide = "complex128" if dtype.startswith("complex") else "float64" if dtype in FLOATS else "bool" if dtype == "bool" else "int64"
    expected = values(0, dtype).astype(wide)
    for other in range(1, size):
        expected = OPS[op](expected, values(other, dtype).astype(wide))
    if op is hvd.Average:
        expected = np.trunc(expected / size) if dtype in INTEGERS else expected / size
    found = hvd.allreduce(values(rank, dtype), op=op)
    assert found.dtype == numpy_type(dtype)
    tolerance = 2**-7 if dtype in NARROW else 1e-6
    np.testing.assert_allclose(found.astype(wide), expected, rtol=tolerance if op is hvd.Average else 0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_large_halves_average_without_overflow(dtype):
    assert (hvd.allreduce(np.full(5, 40000, dtype)) == 40000).all()


def test_integer_averages_are_truncated_and_exact(rank, size):
    assert hvd.allreduce(np.array([-(rank + 1), rank + 1], np.int32)).tolist() == [-((size + 1) // 2), (size + 1) // 2]
    large = np.array([(1 << 60) + 1 if rank == 0 else 0])
    assert hvd.allreduce(large).tolist() == [((1 << 60) + 1) // size]


@pytest.mark.parametrize("shape", [(), (0,), (4, 0), (1,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_every_shape(shape, dtype, rank, size):
    total = hvd.allreduce(np.full(shape, rank, dtype), op=hvd.Sum)
    assert total.shape == shape
    assert (total == size * (size - 1) // 2).all()
    assert hvd.broadcast(np.full(shape, rank, dtype), size - 1).tolist() == np.full(shape, size - 1, dtype).tolist()


def test_arrays_in_any_order_of_memory(rank, size):
    given = np.arange(12.0).reshape(3, 4)
    for array in (given.T, given[:, ::2], np.asfortranarray(given)):
        assert np.array_equal(hvd.allreduce(array + rank), array + (size - 1) / 2)
        assert np.array_equal(hvd.allgather(array)[:: len(array)], np.repeat(array[:1], size, axis=0))
        assert np.array_equal(hvd.broadcast(array * rank, size - 1), array * (size - 1))


def test_factors(rank, size):
    for dtype in ("float16", "bfloat16", "float32", "complex64"):
        array = np.full(3, 1 + rank).astype(numpy_type(dtype))
        hvd.allreduce_async([array], op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).wait()
        assert array.astype(np.complex64).tolist() == [size * (size + 1) / 4] * 3
    counts = np.array([10, 20])
    hvd.allreduce_async([counts], op=hvd.Sum, prescale_factor=0.5).wait()
    assert counts.tolist() == [5 * size, 10 * size]


# --- gathers, broadcasts, objects ---


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *COMPLEX, "bool"])
@pytest.mark.parametrize("rest", [(), (2, 3)])
def test_gathers_of_other_lengths(dtype, rest, rank, size):
    found = hvd.allgather(values(rank, dtype, (rank, *rest)))
    assert found.dtype == numpy_type(dtype)
    assert found.tobytes() == np.concatenate([values(r, dtype, (r, *rest)) for r in range(size)]).tobytes()
    assert found.shape == (size * (size - 1) // 2, *rest)


def test_gathers_of_nothing_at_all(size):
    array, lengths = hvd.allgather_async(np.zeros((0, 3), np.float32)).wait()
    assert array.shape == (0, 3)
    assert lengths == [0] * size
    assert hvd.allgather(np.zeros((2, 0))).shape == (2 * size, 0)


def test_broadcasts_from_every_root(rank, size):
    for root in range(size):
        for dtype in ("float32", "bfloat16", "int64", "bool", "complex128"):
            assert hvd.broadcast(values(rank, dtype), root).tobytes() == values(root, dtype).tobytes()
        assert hvd.broadcast(np.array(rank), root) == root


def test_objects(rank, size):
    for root in range(size):
        found = hvd.broadcast_object({"from": rank, "blob": "x" * 1000 * rank}, root)
        assert found == {"from": root, "blob": "x" * 1000 * root}
    assert hvd.allgather_object((rank, "y" * rank)) == [(r, "y" * r) for r in range(size)]


def test_a_barrier_waits_for_all(rank, size):
    import time

    before = hvd.allgather_object(None)
    assert len(before) == size
    time.sleep(0.3 if rank == size - 1 else 0)
    mine = time.time()
    hvd.barrier()
    after = time.time()
    assert after >= max(hvd.allgather_object(mine)) - 0.01


# --- many at once ---


def test_tensors_submitted_in_another_order_on_each_rank_come_back_right(rank, size):
    order = np.random.default_rng(rank).permutation(1000)
    handles = {}
    for i in order:
        array = np.full(1024, i + rank, np.float32)
        handles[i] = (array, hvd.allreduce_async([array], name=f"order.{i}"))
    for i, (array, handle) in handles.items():
        handle.wait()
        assert (array == np.float32(i + (size - 1) / 2)).all()


def test_all_kinds_in_flight_together(rank, size):
    kinds = {
        "reduce": lambda n: hvd.allreduce_async([np.full(10, rank, np.float64)], name=n, op=hvd.Sum),
        "half": lambda n: hvd.allreduce_async([np.full(10, rank, np.float16)], name=n, op=hvd.Max),
        "gather": lambda n: hvd.allgather_async(np.full(rank, rank), name=n),
        "spread": lambda n: hvd.broadcast_async([np.full(10, rank)], size - 1, name=n),
        "compressed": lambda n: hvd.allreduce_async([np.full((64, 64), rank, np.float32)], name=n, compression="fp16"),
    }
    names = [f"{kind}.{i}" for i in range(20) for kind in kinds]
    np.random.default_rng(rank).shuffle(names)
    handles = {n: kinds[n.split(".")[0]](n) for n in names}
    for name, handle in handles.items():
        result = handle.wait()
        if name.startswith("gather"):
            assert result[1] == list(range(size))


def test_groups_of_mixed_dtypes_are_one_unit(rank, size):
    group = [np.full((i + 1, 2), rank + i).astype(numpy_type(d)) for i, d in enumerate(["float32", "bfloat16", "int64", "float32", "complex64", "float64"])]
    hvd.allreduce_async(group, op=hvd.Sum, name="group").wait()
    for i, array in enumerate(group):
        assert (array.astype(np.complex64) == size * (size - 1) // 2 + size * i).all()


def test_large_arrays(rank, size):
    array = np.arange(3_000_000, dtype=np.float32) % 1000 + rank
    expected = np.arange(3_000_000, dtype=np.float32) % 1000 + np.float32((size - 1) / 2)
    hvd.allreduce_async([array]).wait()
    np.testing.assert_allclose(array, expected, rtol=1e-6)


# --- compressed ---


@pytest.mark.parametrize("spec", compression.names())
def test_compressors_on_free_standing_arrays(spec, rank, size):
    exact = np.mean([np.random.default_rng(r).standard_normal((64, 48)) for r in range(size)], axis=0)
    array = np.random.default_rng(rank).standard_normal((64, 48)).astype(np.float32)
    compressor = compression.load(spec)
    total = np.zeros_like(array)
    for _ in range(60):
        total += hvd.allreduce(array, name=f"free.{spec}", compression=compressor)
    digests = hvd.allgather_object(total.tobytes())
    assert len(set(digests)) == 1
    if spec != "topk":
        assert np.linalg.norm(total / 60 - exact) < 0.5 * np.linalg.norm(exact)
    assert np.sum(total * exact) > 0
    doubled = hvd.allreduce(array, op=hvd.Sum, compression=compression.load(spec))
    assert np.isfinite(doubled).all()


@pytest.mark.parametrize("spec", ["fp16", "topk:density=0.1", "int8", "powersgd:rank=2"])
def test_one_ranks_nan_is_everybodys_and_no_residual_hears_of_it(spec, rank, size):
    compressor = compression.load(spec)
    array = np.random.default_rng(rank).standard_normal((64, 48)).astype(np.float32)
    hvd.allreduce(array, name=f"nan.{spec}", compression=compressor)
    before = {n: {q: np.array(v) for q, v in state.items()} for n, state in compressor.state_dict().items()}
    for bad in (np.nan, np.inf):
        poisoned = array.copy()
        if rank == size - 1:
            poisoned[3, 4] = bad
        assert np.isnan(hvd.allreduce(poisoned, name=f"nan.{spec}", compression=compressor)).all()
    after = compressor.state_dict()
    assert before.keys() == after.keys()
    for name, state in before.items():
        for quantity, value in state.items():
            assert np.array_equal(value, after[name][quantity])
    assert np.isfinite(hvd.allreduce(array, name=f"nan.{spec}", compression=compressor)).all()


def test_plain_sums_carry_nan_where_it_is(rank, size):
    array = np.ones(4, np.float32)
    array[1] = np.nan if rank == size - 1 else 1
    found = hvd.allreduce(array)
    assert np.isnan(found).tolist() == [False, True, False, False]


# --- again ---


def test_init_after_shutdown_in_the_same_process(rank, size):
    for _ in range(3):
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (rank, size)
        assert hvd.allreduce(np.array([rank]), op=hvd.Max).tolist() == [size - 1]
