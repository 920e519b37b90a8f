"""Adaptive summation, played for any number of ranks, against its definition in float64."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hvdlite import compression
from hvdlite.compression._simulate import play
from hvdlite.errors import SettingError
from hvdlite.negotiation import Vote
from hvdlite.operations import Adasum, AllReduceOperation, check_reducible

RANKS = range(1, 7)


def reduce(groups, **more):
    """``groups[rank]``: a list of arrays, reduced in place as one operation."""
    play([AllReduceOperation("x", g, Adasum, len(groups), r, **more).program(Vote.ALL) for r, g in enumerate(groups)])
    return groups


def combined(a, b, m=1, n=1):
    """The definition, of vectors that stand for m and n ranks."""
    dot, aa, bb = a @ b, a @ a, b @ b
    return (1 - m / (m + n) * dot / aa if aa else 1) * a + (1 - n / (m + n) * dot / bb if bb else 1) * b


def reference(vectors):
    """The tree, by recursion: the largest power of two below half or more of the ranks comes first."""
    vectors = [np.asarray(v, np.float64).reshape(-1) for v in vectors]
    if len(vectors) == 1:
        return vectors[0]
    left = 1
    while 2 * left < len(vectors):
        left *= 2
    return combined(reference(vectors[:left]), reference(vectors[left:]), left, len(vectors) - left)


def horovods(vectors):
    """Horovod's recursion, for a power of two: in round k, rank r meets rank ``r ^ 2**k``."""
    vectors, level = [np.asarray(v, np.float64).reshape(-1) for v in vectors], 1
    while level < len(vectors):
        vectors = [combined(vectors[min(r, r ^ level)], vectors[max(r, r ^ level)]) for r in range(len(vectors))]
        level *= 2
    assert all((v == vectors[0]).all() for v in vectors)
    return vectors[0]


def close(found, expected, scale, eps):
    np.testing.assert_allclose(np.asarray(found, np.float64).reshape(-1), expected, rtol=0, atol=64 * eps * max(scale, np.finfo(np.float32).tiny))


values = st.integers(-8, 8).map(float) | st.floats(-100, 100, width=32)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(RANKS), st.sampled_from(["float32", "float64"]), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_each_tensor_of_a_group_is_combined_as_defined_and_ranks_agree(data, size, dtype, lengths):
    groups = [[np.array(data.draw(st.lists(values, min_size=n, max_size=n)), dtype) for n in lengths] for _ in range(size)]
    given_values = [[a.copy() for a in g] for g in groups]
    reduce(groups)
    for number in range(len(lengths)):
        vectors = [g[number] for g in given_values]
        squares = [float(np.linalg.norm(v.astype(np.float64))) for v in vectors]
        if all(norm > 1e-3 * max(squares) for norm in _norms(vectors)):  # where halves cancel, rounding decides the direction of what is left
            close(groups[0][number], reference(vectors), sum(squares), np.finfo(dtype).eps)
        assert len({g[number].tobytes() for g in groups}) == 1


def _norms(vectors):
    """Lengths of all that is combined on the way."""
    left = 1
    while 2 * left < len(vectors):
        left *= 2
    own = [float(np.linalg.norm(reference(vectors)))]
    return own if len(vectors) == 1 else own + _norms(vectors[:left]) + _norms(vectors[left:])


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_powers_of_two_are_horovods_recursion(size):
    vectors = [np.random.default_rng(r).standard_normal(1000) for r in range(size)]
    expected = horovods(vectors)
    reduce([[v] for v in vectors])
    np.testing.assert_allclose(vectors[size - 1], expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(RANKS), st.integers(0, 2**32 - 1))
def test_orthogonal_vectors_add_up_and_parallel_ones_average(size, seed):
    rng = np.random.default_rng(seed)
    orthogonal = np.linalg.qr(rng.standard_normal((50, size)))[0].T * rng.uniform(0.1, 10, (size, 1))
    groups = reduce([[v.copy()] for v in orthogonal])
    np.testing.assert_allclose(groups[-1][0], orthogonal.sum(axis=0), atol=1e-10)
    parallel = rng.standard_normal(50) * rng.uniform(0.1, 10, (size, 1))
    groups = reduce([[v.copy()] for v in parallel])
    np.testing.assert_allclose(groups[-1][0], parallel.mean(axis=0), atol=1e-10)


def test_one_rank_keeps_its_bits():
    for dtype in ("float16", "float32", "float64"):
        array = np.random.default_rng(0).standard_normal((3, 5)).astype(dtype)
        before = array.tobytes()
        reduce([[array]], compressor=compression.load("fp16"))
        assert array.tobytes() == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_narrow_floats_are_combined_in_float32(dtype, size):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    tops = np.array([[float(ml_dtypes.finfo(kind).max)] * 3000] * size).astype(kind)  # any sum, and any product, would overflow
    groups = reduce([[v.copy()] for v in tops])
    assert (groups[0][0] == tops[0]).all()
    rng = np.random.default_rng(size)
    vectors = [rng.standard_normal(777).astype(kind) for _ in range(size)]
    expected = reference(vectors)
    groups = reduce([[v.copy()] for v in vectors])
    np.testing.assert_allclose(groups[0][0].astype(np.float64), expected, rtol=float(ml_dtypes.finfo(kind).eps), atol=1e-5)
    assert len({g[0].tobytes() for g in groups}) == 1


@pytest.mark.parametrize("spec", ["fp16", "bf16"])
@pytest.mark.parametrize("size", [2, 3])
def test_16_bits_on_the_wire(spec, size):
    """fp16 has a scale: entries far below the smallest float16 arrive."""
    rng, tolerance = np.random.default_rng(size), {"fp16": 2e-3, "bf16": 1.6e-2}[spec]
    vectors = [(rng.standard_normal((40, 50)) * 1e-12).astype(np.float32) for _ in range(size)]
    expected = reference(vectors)
    groups = reduce([[v.copy()] for v in vectors], compressor=compression.load(spec))
    assert np.abs(groups[0][0].reshape(-1) - expected).max() < tolerance * np.abs(expected).max()
    assert len({g[0].tobytes() for g in groups}) == 1


@example(scale=1e-22, size=3)
@example(scale=1e18, size=4)
@settings(max_examples=30, deadline=None)
@given(st.floats(1e-15, 1e15), st.sampled_from(RANKS))
def test_the_scale_of_all_does_not_matter(scale, size):
    vectors = [np.random.default_rng(r).standard_normal(64).astype(np.float32) for r in range(size)]
    plain = reduce([[v.copy()] for v in vectors])
    scaled = reduce([[(v * np.float32(scale))] for v in vectors], prescale=2.0, postscale=0.5)
    np.testing.assert_allclose(scaled[0][0] / np.float32(scale), plain[0][0], rtol=1e-4, atol=1e-5)


def test_a_rank_without_a_gradient_changes_nothing():
    vectors = [np.zeros(40, np.float32), np.arange(40, dtype=np.float32)]
    assert (reduce([[v.copy()] for v in vectors])[0][0] == vectors[1]).all()


def test_operations_that_travel_together_keep_factors_of_their_own():
    rng = np.random.default_rng(0)
    arrays = [[rng.standard_normal(n).astype(np.float32) for n in (5, 700, 33)] for _ in range(3)]
    alone = [[a.copy() for a in theirs] for theirs in arrays]
    for i in range(3):
        reduce([[theirs[i]] for theirs in alone])
    operations = [[AllReduceOperation(f"x{i}", [a], Adasum, 3, r) for i, a in enumerate(theirs)] for r, theirs in enumerate(arrays)]
    play([own[0].fused(own) for own in operations])
    for found, expected in zip(arrays[1], alone[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_only_real_floats(dtype):
    with pytest.raises(SettingError, match=r"'x' .*op=Adasum"):
        check_reducible("x", dtype, Adasum, 1.0, 1.0)


@pytest.mark.parametrize("spec", ["topk", "powersgd", "int8", "sign", "fp16:feedback=true"])
def test_only_compressors_that_round(spec):
    with pytest.raises(SettingError, match=r"cannot compress op=Adasum; fp16 or bf16"):
        AllReduceOperation("x", [np.zeros((64, 64), np.float32)], Adasum, 2, 0, compressor=compression.load(spec))
