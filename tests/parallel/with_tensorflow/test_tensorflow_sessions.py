"""Graphs that a session runs (TensorFlow 1): collectives in any order, training, and what only such programs use."""

import time

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd

v1 = tf.compat.v1


@pytest.fixture(params=[1, 2], ids="{} threads".format)
def session(request):
    """A graph, and a session with so many threads for all that its operations do."""
    config = v1.ConfigProto(inter_op_parallelism_threads=request.param, intra_op_parallelism_threads=1)
    with tf.Graph().as_default(), v1.Session(config=config) as opened:
        yield opened


def test_ranks_may_come_to_their_collectives_in_any_order(session, rank, size):
    """Many more than threads, of every kind, independent of each other, and each rank made them in another order; and again, with one that waits for others."""

    def slowly(x):
        time.sleep(0.002 * ((rank + int(x)) % 3))
        return x

    numbers = list(np.random.default_rng(rank).permutation(12))
    sums, wholes, roots = {}, {}, {}
    for n in numbers:
        given = tf.ensure_shape(tf.numpy_function(slowly, [tf.constant(float(n))], tf.float32), ())
        sums[n] = hvd.allreduce(given * (rank + 1), op=hvd.Sum, name=f"sum.{n}")
        wholes[n] = hvd.allgather(tf.fill((rank + 1, 1), given), name=f"gather.{n}")
        roots[n] = hvd.broadcast(given + rank, size - 1, name=f"root.{n}")
    chained = hvd.allreduce(tf.add_n([sums[n] for n in sorted(sums)]), name="after")
    for _ in range(3):
        found = session.run([sums, wholes, roots, chained])
    for n in numbers:
        assert found[0][n] == n * size * (size + 1) / 2
        np.testing.assert_array_equal(found[1][n], np.full((size * (size + 1) // 2, 1), n))
        assert found[2][n] == n + size - 1
    assert found[3] == 66 * size * (size + 1) / 2


def test_what_is_not_asked_for_does_not_run(session, rank, size):
    """Other collectives of the graph are no concern of a run, and cost it nothing."""
    unfed = v1.placeholder(tf.float32, ())
    idle = hvd.allreduce(unfed, name="idle")
    assert session.run(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="asked")) == size
    assert session.run(idle, {unfed: float(rank)}) == (size - 1) / 2


def test_the_root_alone_needs_the_gradient_of_a_broadcast_and_all_compute_it(session, rank, size):
    x = tf.ones(3) * rank
    (gradient,) = tf.gradients(hvd.broadcast(x, 0), x, tf.ones(3) * (rank + 1.0))
    np.testing.assert_allclose(session.run(gradient), np.full(3, (size + 1) / 2 if rank == 0 else 0.0))


def test_a_difference_between_ranks_is_a_failed_precondition(session, odd, size):
    """The session goes on."""
    shape = (3,) if odd else (2,)
    wrong = hvd.allreduce(tf.ones(shape), name="x")
    expected = rf"'x' has shape \(2,\) on rank 0 but \(3,\) on rank {size - 1}"
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match=expected):
            session.run(wrong)
    assert session.run(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == size


def model(optimizer, start, x, y, rows):
    """A regression with an embedding, and a step of its optimizer."""
    with v1.variable_scope("model", use_resource=True):
        table = v1.get_variable("table", (10, 4), initializer=v1.constant_initializer(0.1))
        weight = v1.get_variable("weight", (4, 1), initializer=v1.constant_initializer(0.5 + start))
    hidden = tf.gather(table, rows) + x
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(hidden), weight) - y))
    return table, weight, optimizer.minimize(loss)


@pytest.mark.parametrize("how", [{}, {"sparse_as_dense": True, "groups": 1}, {"compression": "fp16"}], ids=str)
def test_an_optimizer_of_tensorflow_1_equals_one_process(how, rank, size):
    """From the weights of rank 0: the others' differ, until the hook has broadcast them."""
    rng = np.random.default_rng(0)
    x, y, rows = rng.normal(size=(5, size, 6, 4)), rng.normal(size=(5, size, 6, 1)), rng.integers(0, 10, (5, size, 6))
    config = v1.ConfigProto(inter_op_parallelism_threads=1)
    momentum = 0.0 if "sparse_as_dense" in how else 0.9  # rows that are not used keep their momentum where gradients are sparse

    def train(wrap, start, hooks, feed):
        with tf.Graph().as_default():
            places = v1.placeholder(tf.float32, (None, 4)), v1.placeholder(tf.float32, (None, 1)), v1.placeholder(tf.int64, (None,))
            table, weight, step = model(wrap(v1.train.MomentumOptimizer(0.1, momentum)), start, *places)
            with v1.train.MonitoredTrainingSession(hooks=hooks, config=config) as opened:
                for number in range(5):
                    opened.run(step, dict(zip(places, feed(number), strict=True)))
                return opened.run([table, weight])

    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    mine = train(lambda optimizer: hvd.DistributedOptimizer(optimizer, **how), rank, hooks, lambda n: (x[n, rank], y[n, rank], rows[n, rank]))
    alone = train(lambda optimizer: optimizer, 0, [], lambda n: (x[n].reshape(-1, 4), y[n].reshape(-1, 1), rows[n].ravel()))
    for found, wanted in zip(mine, alone, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3 if how.get("compression") else 1e-5)
        assert len(set(hvd.allgather_object(found.tobytes()))) == 1


def test_all_variables_of_the_graph_become_the_roots(session, rank, size):
    made = [v1.get_variable("a", (3,), initializer=v1.constant_initializer(float(rank)), use_resource=True)]
    made.append(v1.get_variable("b", (), initializer=v1.constant_initializer(10.0 + rank), use_resource=False))
    session.run(v1.global_variables_initializer())
    session.run(hvd.broadcast_global_variables(size - 1))
    first, second = session.run(made)
    np.testing.assert_allclose(first, np.full(3, size - 1.0))
    assert second == 10.0 + size - 1


def test_what_only_graphs_have():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_what_an_optimizer_of_tensorflow_1_cannot_do():
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(NotImplementedError, match="backward_passes_per_step=2"):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="op=Max"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Max)
