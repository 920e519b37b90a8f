"""The layout of gradients in buckets, and their exchange, alone and between ranks that are threads."""

import numpy as np
import pytest
from bucket_worlds import MODEL, Counted, alone, gradients, on_ranks, step, worlds_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite import compression
from hvdlite.buckets import GradientBuckets, Parameter, plan
from hvdlite.errors import MismatchError
from hvdlite.operations import Sum

PARAMETERS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), max_size=3).map(tuple), st.sampled_from(["float32", "float64", "bfloat16", "float16"]), st.sampled_from([None, None, 0, 1])
    ),
    max_size=25,
).map(lambda rows: [Parameter(f"p{i}", *row) for i, row in enumerate(rows)])


@given(PARAMETERS, st.sampled_from([None, "none", "fp16", "topk", "powersgd"]), st.integers(1, 20_000))
@settings(max_examples=150, deadline=None)
def test_every_parameter_is_in_one_bucket_with_its_like(parameters, spec, bucket_bytes):
    compressor = None if spec is None else compression.load(spec)
    plans = plan(parameters, compressor, bucket_bytes)
    dealt = [p for b in plans for p in b.parameters]
    assert sorted(p.name for p in dealt) == sorted(p.name for p in parameters)
    place = {p.name: i for i, p in enumerate(parameters)}
    for bucket in plans:
        assert bucket.parameters
        assert len({p.dtype for p in bucket.parameters}) == 1
        assert len({p.group for p in bucket.parameters}) == 1
        order = [place[p.name] for p in bucket.parameters]
        assert order == sorted(order)
        accepted = {compressor is None or compressor.accepts(p.shape) for p in bucket.parameters}
        assert len(accepted) == 1
        assert bucket.compressed == (compressor is not None and accepted == {True})
        if accepted == {True} and bucket.parameters[0].group is None:  # never more than the size and one parameter
            assert sum(p.nbytes for p in bucket.parameters[:-1]) < bucket_bytes
    kinds = [(b.parameters[0].dtype, b.parameters[0].group, b.compressed) for b in plans]
    small = [k for k in kinds if k[1] is not None or (compressor is not None and not k[2])]
    assert len(small) == len(set(small))  # what is refused, and every group, is one bucket a dtype


def test_sizes_are_exact():
    assert Parameter("x", (3, 4), "float64").nbytes == 96
    assert Parameter("x", (), "bfloat16").nbytes == 2
    assert Parameter("x", (0, 4), "float32").nbytes == 0


NAMES = [p.name for p in MODEL]


def test_views_are_the_memory_of_the_bucket():
    buckets = GradientBuckets(alone(), "g", MODEL, None)
    assert len(buckets.plans) == 1
    bases = {id(buckets.view(n).base if buckets.view(n).base is not None else None) for n in NAMES}
    assert len(bases) == 1
    for parameter in MODEL:
        assert buckets.view(parameter.name).shape == parameter.shape
        assert np.shares_memory(buckets.view(parameter.name), buckets.view(parameter.name))
    assert not np.shares_memory(buckets.view("fc1.weight"), buckets.view("fc1.bias"))
    flat = buckets._buckets[0].flat
    assert flat.size == sum(p.num_elements for p in MODEL)
    assert all(np.shares_memory(flat, buckets.view(n)) for n in NAMES)


def test_the_first_layout_is_the_reverse_order():
    buckets = GradientBuckets(alone(bucket_bytes=1), "g", MODEL, None)
    assert [p.name for b in buckets.plans for p in b.parameters] == NAMES[::-1]


def test_after_the_first_step_every_rank_has_rank_zeros_order(thread_world):
    worlds = worlds_of(thread_world, 3, bucket_bytes=1)
    buckets = [GradientBuckets(w, "g", MODEL, None) for w in worlds]
    orders = [[NAMES[1], NAMES[0], NAMES[3], NAMES[2]], NAMES, NAMES[::-1]]
    grads = [gradients(r) for r in range(3)]
    for _ in range(3):
        assert on_ranks(3, lambda rank: step(buckets[rank], grads[rank], orders[rank])) == [frozenset()] * 3
        for name in NAMES:
            expected = sum(g[name] for g in grads) / 3
            for rank in range(3):
                np.testing.assert_allclose(buckets[rank].view(name) if _ else expected, expected, rtol=1e-5, atol=1e-6)
        for b in buckets:
            assert [p.name for bucket in b.plans for p in bucket.parameters] == orders[0]


def test_what_rank_zero_never_saw_keeps_its_place_at_the_end(thread_world):
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    buckets = [GradientBuckets(w, "g", MODEL, None) for w in worlds]
    seen = [["fc2.bias", "fc1.bias"], NAMES]
    grads = gradients(0)
    on_ranks(2, lambda rank: step(buckets[rank], grads, seen[rank]))
    for b in buckets:
        assert [p.name for bucket in b.plans for p in bucket.parameters] == ["fc2.bias", "fc1.bias", "fc2.weight", "fc1.weight"]


def test_missing_gradients_count_as_zero_and_the_absent_everywhere_are_told(thread_world):
    worlds = worlds_of(thread_world, 2)
    buckets = [GradientBuckets(w, "g", MODEL, None, op=Sum) for w in worlds]
    for b in buckets:  # remains of an earlier step must not be sent
        for name in NAMES:
            b.view(name)[...] = 99
    grads = gradients(0)
    seen = [["fc1.weight", "fc2.weight"], ["fc1.weight", "fc1.bias"]]
    assert on_ranks(2, lambda rank: step(buckets[rank], grads, seen[rank])) == [frozenset({"fc2.bias"})] * 2
    views = [{n: b.view(n) for n in NAMES} for b in buckets]  # where the gradients lie now; the layout has changed
    for rank in range(2):
        np.testing.assert_allclose(views[rank]["fc1.weight"], 2 * grads["fc1.weight"], rtol=1e-6)
        np.testing.assert_array_equal(views[rank]["fc2.weight"], grads["fc2.weight"])
        np.testing.assert_array_equal(views[rank]["fc1.bias"], grads["fc1.bias"])
        assert not views[rank]["fc2.bias"].any()


def test_a_full_bucket_goes_out_before_finish(thread_world):
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    buckets = [GradientBuckets(w, "g", MODEL, None) for w in worlds]
    assert not buckets[0].in_flight
    for b in buckets:
        b.view("fc2.bias")[...] = 1
        b.mark_ready("fc2.bias")
        assert b.in_flight
    assert buckets[0]._bucket_of["fc2.bias"].handle._event.wait(20)
    on_ranks(2, lambda rank: buckets[rank].finish())
    assert not buckets[0].in_flight


@pytest.mark.parametrize("spec", ["topk:density=0.25", "powersgd:rank=1"])
def test_a_residual_follows_its_parameter_to_another_bucket(spec):
    """Two steps with a re-layout between equal two steps of buckets that had the final layout from the start, where the layout is no matter."""
    world = alone(bucket_bytes=1)  # every matrix alone in its bucket: the layout changes only their order
    moved = compression.load(spec)
    buckets = GradientBuckets(world, "g", MODEL, moved)
    step(buckets, gradients(0), NAMES)
    before = {n: q["residual"].copy() for n, q in moved.state_dict().items() if "residual" in q}
    assert [p.name for b in buckets.plans for p in b.parameters if b.compressed] == ["fc1.weight", "fc2.weight"]
    after = {n: q["residual"] for n, q in moved.state_dict().items() if "residual" in q}
    assert before.keys() == {"fc1.weight", "fc2.weight"}
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
        assert before[name].any()
    step(buckets, gradients(1), NAMES)

    still = compression.load(spec)
    same = GradientBuckets(alone(bucket_bytes=1), "g", MODEL, still)
    same._observed = None  # keeps its first layout
    for seed in (0, 1):
        step(same, gradients(seed), NAMES)
    for name in NAMES:
        np.testing.assert_array_equal(buckets.view(name), same.view(name))


def test_dense_bytes_are_what_the_gradients_would_have_taken(thread_world):
    worlds = worlds_of(thread_world, 2)
    buckets = [GradientBuckets(w, "g", MODEL, compression.load("fp16")) for w in worlds]
    on_ranks(2, lambda rank: step(buckets[rank], gradients(rank)))
    total = 4 * sum(p.num_elements for p in MODEL)
    assert worlds[0].metrics.dense_bytes == total
    assert worlds[0].metrics.wire_bytes == pytest.approx(total / 2, rel=0.05)
    assert worlds[0].metrics.exposed_ms > 0


def test_a_failed_step_is_told_once_and_the_next_one_starts_afresh(thread_world):
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    other = [*MODEL[:-1], Parameter("fc2.bias", (41,), "float32")]
    buckets = [GradientBuckets(w, "g", m, None) for w, m in zip(worlds, (MODEL, other), strict=True)]
    for _ in range(2):
        failures = on_ranks(2, lambda rank: step(buckets[rank], {n: buckets[rank].view(n).copy() for n in NAMES}))
        assert [type(f) for f in failures] == [MismatchError] * 2
        assert "'fc2.bias' has shape (40,) on rank 0 but (41,) on rank 1" in str(failures[0])
        assert not any(b.in_flight for b in buckets)


def test_every_compressed_bucket_announces_a_changed_signature(thread_world):
    """One rank alone flushes: not one of its buckets may be exchanged with a bucket that is not flushed."""
    worlds = worlds_of(thread_world, 2, bucket_bytes=1)
    compressors = [Counted(), Counted()]
    buckets = [GradientBuckets(w, "g", MODEL, c) for w, c in zip(worlds, compressors, strict=True)]
    for b in buckets:
        b._observed = None
    for _ in range(2):
        assert on_ranks(2, lambda rank: step(buckets[rank], gradients(rank))) == [frozenset()] * 2
    compressors[1].flushing = True
    for rank in range(2):
        for name in NAMES:
            buckets[rank].view(name)[...] = 1
            buckets[rank].mark_ready(name)
    handles = {b.name: b.handle for b in buckets[1]._buckets}
    compressed = {b.name for b in buckets[1]._buckets if b.plan.compressed}
    on_ranks(2, lambda rank: buckets[rank].finish())
    assert len(compressed) == 2
    for name, handle in handles.items():
        assert isinstance(handle._error, MismatchError) == (name in compressed), name
