"""The collectives on TensorFlow's tensors, against the same computation done locally, eagerly and in graphs; and their gradients."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite
import hvdlite.tensorflow as hvd

DTYPES = [tf.float64, tf.float32, tf.float16, tf.bfloat16, tf.complex64, tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64]


def values(rank, shape=(5, 7), dtype=tf.float32):
    """What ``rank`` gives: small whole numbers, so that no rounding hides a mistake."""
    return tf.cast(np.random.default_rng(100 + rank).integers(0, 4, shape), dtype)


def everyone(size, shape=(5, 7)):
    return np.stack([values(r, shape, tf.float64).numpy() for r in range(size)])


def test_every_dtype_is_summed(run_as, rank, size):
    def step(*tensors):
        return [hvd.allreduce(t, op=hvd.Sum, name=f"sum.{t.dtype.name}") for t in tensors]

    for dtype, result in zip(DTYPES, run_as(step)(*(values(rank, dtype=d) for d in DTYPES)), strict=True):
        assert result.dtype == dtype
        np.testing.assert_array_equal(np.asarray(result).astype(np.complex128).real, everyone(size).sum(0))


def test_operations_factors_and_shapes(run_as, rank, size):
    def step():
        results = {op.name: hvd.allreduce(values(rank), op=op) for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)}
        results["deprecated sum"] = hvd.allreduce(values(rank), average=False)
        results["factors"] = hvd.allreduce(values(rank), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        results["scalar"] = hvd.allreduce(values(rank, ()))
        results["empty"] = hvd.allreduce(values(rank, (0, 3)))
        results["variable"] = hvd.allreduce(variable)
        results["fp16"] = hvd.allreduce(values(rank), compression=hvd.Compression.fp16, op=hvd.Sum)
        results["a spec"] = hvd.allreduce(values(rank), compression="bf16", op=hvd.Sum)
        results["a class"] = hvd.allreduce(values(rank), compression=Halved, op=hvd.Sum)
        return results

    class Halved:
        """A compressor as Horovod's users write it."""

        @staticmethod
        def compress(tensor):
            return tensor / 2, None

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * 2

    variable = tf.Variable(values(rank))
    given = everyone(size)
    total = given.sum(0)
    expected = {"Average": given.mean(0), "Sum": total, "Min": given.min(0), "Max": given.max(0), "Product": given.prod(0)}
    expected |= {"deprecated sum": total, "factors": 2 * total, "scalar": everyone(size, ()).mean(0), "empty": np.zeros((0, 3)), "variable": given.mean(0)}
    expected |= {"fp16": total, "a spec": total, "a class": total}
    found = run_as(step)()
    assert found.keys() == expected.keys()
    rounded = {"fp16": 1e-3, "a spec": 1e-2}  # their mean is, before it is multiplied to the sum
    for name, result in found.items():
        np.testing.assert_allclose(result, expected[name], rtol=rounded.get(name, 1e-6), err_msg=name)
        assert result.shape == expected[name].shape


def test_average_and_op_exclude_each_other():
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(values(0), average=True, op=hvd.Sum)


def test_what_is_no_process_set_is_refused_clearly():
    with pytest.raises(ValueError, match="a set that is registered is expected"):
        hvd.allreduce(values(0), process_set=object())


def test_gather_and_broadcast(run_as, rank, size):
    def step():
        rows = hvd.allgather(tf.fill((rank, 3), float(rank)))
        pair = hvd.grouped_allgather([values(rank, (2, 2)), tf.fill((rank + 1,), rank)])
        return rows, pair, hvd.broadcast(values(rank), size - 1), hvd.grouped_allreduce([values(rank), values(rank, (3,))], op=hvd.Sum)

    rows, (square, numbers), root, (first, second) = run_as(step)()
    np.testing.assert_array_equal(rows, np.concatenate([np.full((r, 3), r) for r in range(size)]))
    np.testing.assert_array_equal(square, everyone(size, (2, 2)).reshape(-1, 2))
    np.testing.assert_array_equal(numbers, np.concatenate([np.full(r + 1, r) for r in range(size)]))
    np.testing.assert_array_equal(root, values(size - 1))
    np.testing.assert_array_equal(first, everyone(size).sum(0))
    np.testing.assert_array_equal(second, everyone(size, (3,)).sum(0))


def test_rows_for_each_rank(run_as, rank, size):
    """Rank r sends i + r rows to rank i; and evenly, without splits."""
    splits = [i + rank for i in range(size)]

    def step():
        given = tf.fill((sum(splits), 2), float(rank))
        return *hvd.alltoall(given, splits=tf.constant(splits)), hvd.alltoall(tf.range(2 * size) + 100 * rank)

    rows, lengths, even = run_as(step)()
    np.testing.assert_array_equal(rows, np.concatenate([np.full((rank + r, 2), r) for r in range(size)]))
    np.testing.assert_array_equal(lengths, [rank + r for r in range(size)])
    np.testing.assert_array_equal(even, np.concatenate([[2 * rank + 100 * r, 2 * rank + 1 + 100 * r] for r in range(size)]))


def test_a_share_of_the_sum_for_each_rank(run_as, rank, size):
    shape = (2 * size + 1, 3)  # one row more for rank 0

    def step():
        mean = hvd.reducescatter(values(rank, shape))
        total = hvd.reducescatter(values(rank, shape), op=hvd.Sum, compression=hvd.Compression.fp16, prescale_factor=2.0)
        return mean, total, *hvd.grouped_reducescatter([values(rank, shape), values(rank, (size,))], op=hvd.Max)

    mean, total, top, single = run_as(step)()
    mine = np.array_split(np.arange(shape[0]), size)[rank]
    np.testing.assert_allclose(mean, everyone(size, shape).mean(0)[mine], rtol=1e-6)
    np.testing.assert_array_equal(total, 2 * everyone(size, shape).sum(0)[mine])
    np.testing.assert_array_equal(top, everyone(size, shape).max(0)[mine])
    np.testing.assert_array_equal(single, everyone(size, (size,)).max(0)[[rank]])
    with pytest.raises(ValueError, match="compressors exchange whole tensors"):
        hvd.reducescatter(values(rank, shape), compression="topk")


def test_a_scalar_cannot_be_gathered():
    with pytest.raises(ValueError, match="is a scalar"):
        hvd.allgather(tf.constant(1.0))


def test_slices_are_gathered_and_mean_the_same_as_dense(run_as, rank, size):
    """Ranks give different numbers of slices, one of them none, and rows repeat."""
    indices = [(rank + i) % 4 for i in range(rank * 2)]

    def step(op):
        slices = tf.IndexedSlices(values(rank, (len(indices), 3)), tf.constant(indices, tf.int64), tf.constant([4, 3]))
        return tf.convert_to_tensor(hvd.allreduce(slices, op=op)), hvd.allreduce(tf.convert_to_tensor(slices), op=op)

    for op in (hvd.Average, hvd.Sum):
        sparse, dense = run_as(step)(op)
        np.testing.assert_allclose(sparse, dense, rtol=1e-6)
        assert size == 1 or np.any(dense)
    slices = tf.IndexedSlices(values(0, (1, 3)), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="op=Max"):
        hvd.allreduce(slices, op=hvd.Max)
    with pytest.raises(NotImplementedError, match=r"prescale_factor=0\.5"):
        hvd.grouped_allreduce([tf.ones(2), slices], prescale_factor=0.5)


def test_a_group_may_mix_slices_with_tensors(run_as, rank, size):
    """Every member keeps its own shape, also where the group's slices belong to tables of other sizes; and whole numbers are not rounded."""
    shapes = [(6, 2), (9, 3)]

    def step():
        slices = [tf.IndexedSlices(tf.ones((1, width), tf.int32) * (rank + 1), [rank], tf.constant([rows, width])) for rows, width in shapes]
        return hvd.grouped_allreduce([slices[0], tf.fill((4,), float(rank)), slices[1]])

    first, dense, second = run_as(step)()
    np.testing.assert_allclose(dense, np.full(4, (size - 1) / 2))
    for found, shape in zip((first, second), shapes, strict=True):
        assert tuple(found.dense_shape) == shape
        expected = np.zeros(shape)
        expected[:size] = (np.arange(size) + 1)[:, None] / size
        np.testing.assert_allclose(tf.convert_to_tensor(found), expected)


def test_variables_of_the_root_overwrite_the_others(run_as, rank, size):
    made = [tf.Variable(values(rank)), tf.Variable(values(rank, (), tf.int64)), tf.keras.Variable(values(rank, (3,)).numpy(), name="keras")]

    def step():
        hvd.broadcast_variables(made, root_rank=size - 1)

    run_as(step)()
    for variable, shape in zip(made, [(5, 7), (), (3,)], strict=True):
        np.testing.assert_array_equal(variable.numpy(), values(size - 1, shape))
    assert hvd.broadcast_(made[:1], 0)[0] is made[0]


def test_gradients(run_as, rank, size):
    """With upstream gradients that differ from rank to rank, as Horovod defines them."""
    upstream = tf.constant([1.0 + rank, 2.0])
    mean = np.array([1 + (size - 1) / 2, 2.0])
    sums = mean * size

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            results = {
                "average": hvd.allreduce(x) * upstream,
                "sum": hvd.allreduce(x, op=hvd.Sum) * upstream,
                "factors": hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0) * upstream,
                "broadcast": hvd.broadcast(x, 0) * upstream,
                "allgather": tf.tile(upstream, [size]) * hvd.allgather(x),
                "alltoall": hvd.alltoall(tf.tile(x, [size])) * tf.repeat(tf.range(1.0, size + 1.0), 2),
                "reducescatter": hvd.reducescatter(tf.tile(x, [size])) * upstream,
                "grouped": tf.add_n(hvd.grouped_allreduce([x, 3 * x])) * upstream,
            }
        return {name: tape.gradient(result, x) for name, result in results.items()}

    expected = {"average": mean, "sum": sums, "factors": 6 * sums, "broadcast": mean * (rank == 0), "allgather": mean, "grouped": 4 * mean}
    expected |= {"alltoall": np.full(2, size * (rank + 1.0)), "reducescatter": sums}
    found = run_as(step)(tf.constant([3.0, float(rank)]))
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-6, err_msg=name)


def test_what_has_no_gradient_says_so(run_as):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Max)
        return tape.gradient(y, x)

    with pytest.raises(ValueError, match="op=Max is not defined"):
        run_as(step)(tf.constant(1.0))


def test_objects(rank, size):
    assert hvd.broadcast_object({"rank": rank}, root_rank=size - 1) == {"rank": size - 1}
    assert hvd.broadcast_object_fn(root_rank=0)(rank) == 0
    assert hvd.allgather_object([rank]) == [[r] for r in range(size)]


def test_numbers_are_those_of_the_moment_the_graph_runs(run_as, rank, size):
    found = run_as(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])()
    assert [int(n) for n in found] == [rank, size, hvd.local_rank(), hvd.local_size()]
    assert all(n.dtype == tf.int32 for n in found)


def test_ranks_may_come_to_their_collectives_in_another_order(odd):
    """With one thread (conftest.py): a wait takes none that a hand-over needs. What nobody uses is waited for all the same."""
    names = ["c", "b", "a"] if odd else ["a", "b", "c"]

    @tf.function
    def step(x):
        hvd.allreduce(x, name="unused", op=hvd.Sum)
        found = {name: hvd.allreduce(x * (ord(name) - 96), name=name, op=hvd.Sum) for name in names}
        return [found[name] for name in sorted(names)]

    for _ in range(3):
        assert [int(t) for t in step(tf.constant(1.0))] == [hvd.size(), 2 * hvd.size(), 3 * hvd.size()]


@pytest.mark.parametrize("parallel", [1, 10])
def test_rounds_of_a_loop_that_need_nothing_of_each_other(parallel, size):
    """Their calls share a name, so they take turns."""

    @tf.function
    def rounds():
        first = tf.TensorArray(tf.float32, 20)
        body = lambda i, found: (i + 1, found.write(i, hvd.allreduce(tf.cast(i, tf.float32), name="round", op=hvd.Sum)))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 20, body, (0, first), parallel_iterations=parallel)[1].stack()

    assert rounds().numpy().tolist() == [float(size * i) for i in range(20)]


def test_a_loop_in_a_graph_communicates_in_order(rank, size):
    @tf.function
    def loop(x):
        for _ in tf.range(20):
            x = hvd.allreduce(x, op=hvd.Sum) / size + 1.0
        return x

    np.testing.assert_allclose(loop(tf.constant(float(rank))), 20 + (size - 1) / 2, rtol=1e-6)


def test_unnamed_calls_that_one_rank_gets_wrong_do_not_shift_the_later_ones(odd, rank, size):
    if odd:
        for call in (lambda: hvd.allgather(tf.constant(1)), lambda: hvd.broadcast(tf.constant([1]), -1), lambda: hvd.allreduce(tf.constant(["text"]))):
            with pytest.raises(ValueError, match="expected"):
                call()
    counters = hvdlite.allgather_object(dict(hvdlite.world().engine.channel.counters), name="tensorflow.counters")
    assert all(c.get(kind, 0) == counters[0].get(kind, 0) for c in counters for kind in ("allreduce", "allgather", "broadcast"))


def test_xla_is_refused_in_one_line(size):
    @tf.function(jit_compile=True)
    def step(x):
        return hvd.allreduce(x)

    with pytest.raises(ValueError, match="jit_compile=True, and XLA cannot call a communication library"):
        step(tf.constant(1.0))
