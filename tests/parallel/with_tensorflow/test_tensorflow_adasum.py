"""op=Adasum on tensors and gradients; vectors combined here are the judge."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd


def combined(vectors):
    if len(vectors) == 1:
        return np.asarray(vectors[0], np.float64)
    m = 1
    while 2 * m < len(vectors):
        m *= 2
    n = len(vectors) - m
    a, b = combined(vectors[:m]), combined(vectors[m:])
    dot, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    return (1 - m / (m + n) * dot / aa) * a + (1 - n / (m + n) * dot / bb) * b


def values(rank, shape):
    return np.random.default_rng(rank).standard_normal(shape)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_and_groups(run_as, dtype, rank, size):
    shapes = [(3, 4), (2000,)]
    mine = [tf.cast(values(rank, s), dtype) for s in shapes]
    grouped = run_as(lambda: hvd.grouped_allreduce(mine, op=hvd.Adasum))()
    single = run_as(lambda: hvd.allreduce(mine[1], op=hvd.Adasum))()
    eps = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    for found, shape in [*zip(grouped, shapes, strict=True), (single, shapes[1])]:
        expected = combined([tf.cast(tf.cast(values(r, shape), dtype), "float64").numpy() for r in range(size)])
        np.testing.assert_allclose(tf.cast(found, "float64"), expected, rtol=eps, atol=2 * eps)
        assert found.dtype == dtype


def test_a_tape_combines_gradients_one_by_one(run_as, rank, size):
    variables = [tf.Variable(tf.zeros((4, 3))), tf.Variable(tf.zeros((50,)))]

    def step(targets):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v * tf.cast(t, tf.float32)) for v, t in zip(variables, targets, strict=True))
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variables)

    step = run_as(step)
    for number in range(2):
        found = step([tf.constant(values(10 * number + rank, v.shape)) for v in variables])
        for gradient, variable in zip(found, variables, strict=True):
            np.testing.assert_allclose(gradient, combined([values(10 * number + r, variable.shape) for r in range(size)]), rtol=1e-4, atol=1e-5)


def test_what_it_cannot_combine(size):
    slices = tf.IndexedSlices(tf.ones((1, 3)), tf.constant([0]), tf.constant([4, 3]))
    with pytest.raises(NotImplementedError, match="IndexedSlices are reduced with op=Adasum"):
        hvd.allreduce(slices, op=hvd.Adasum)
    with pytest.raises(ValueError, match="op=Adasum of gradients with a Keras optimizer"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)
    table = tf.Variable(tf.zeros((64, 32)))

    def gradient(**how):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 2, 0]))
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum, **how).gradient(loss, table)

    if size > 1:
        with pytest.raises(ValueError, match="topk cannot compress op=Adasum"):
            gradient(compression="topk")
        with pytest.raises(ValueError, match=r"IndexedSlices, of which op=Adasum has no meaning; .*sparse_as_dense=True"):
            gradient()
    np.testing.assert_allclose(tf.convert_to_tensor(gradient(sparse_as_dense=True))[0], [2.0] * 32)
