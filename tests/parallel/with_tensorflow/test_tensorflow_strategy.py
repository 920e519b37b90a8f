"""Programs written for tf.distribute, on ranks: the same weights as on one process."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite
import hvdlite.tensorflow as hvd


@pytest.fixture(scope="module")
def strategy(_world):
    return hvd.MirroredStrategy()


def test_variables_start_as_on_the_root(strategy, rank):
    with strategy.scope():
        made = [tf.Variable(float(rank)), tf.Variable(lambda: tf.random.normal((3,))), tf.keras.layers.Dense(2)]
        made[2].build((None, 3))
        assert tf.distribute.get_strategy() is strategy
    for variable in [*made[:2], *made[2].variables]:
        assert all(np.array_equal(variable, theirs) for theirs in hvd.allgather_object(np.asarray(variable)))
    assert float(made[0]) == 0


def test_where_a_replica_is(strategy, rank, size):
    assert strategy.num_replicas_in_sync == size

    def where():
        context = tf.distribute.get_replica_context()
        return context.replica_id_in_sync_group, context.num_replicas_in_sync

    for run in (strategy.run, tf.function(lambda f: strategy.run(f))):
        found, of = run(where)
        assert (int(found), int(of)) == (rank, size)
    assert strategy.extended.should_checkpoint == (rank == 0)


def test_reduce_and_gather(strategy, run_as, rank, size):
    values = strategy.run(lambda: tf.constant([[1.0 + rank, 2.0]]))

    def step(values):
        reduced = [strategy.reduce(op, values, axis=axis) for op in ("SUM", "MEAN") for axis in (None, 0)]
        return reduced, [strategy.gather(values, axis) for axis in (0, 1)]

    reduced, gathered = run_as(step)(values)
    total, mean = [size * (size + 1) / 2, 2.0 * size], [(size + 1) / 2, 2.0]
    for found, expected in zip(reduced, ([total], total, [mean], mean), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    rows = [[1.0 + r, 2.0] for r in range(size)]
    np.testing.assert_array_equal(gathered[0], rows)
    np.testing.assert_array_equal(gathered[1], [np.concatenate(rows)])


def test_the_context_reduces_and_gathers_with_gradients(strategy, run_as, rank, size):
    def replica(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            context = tf.distribute.get_replica_context()
            loss = tf.reduce_sum(context.all_reduce("SUM", x) * (1.0 + rank))
        gathered = context.all_gather(x, axis=0)
        single, several = context.all_reduce(tf.distribute.ReduceOp.MEAN, {"a": x, "b": tf.constant(rank)}).values()
        return tape.gradient(loss, x), gathered, single, several

    gradient, gathered, single, several = run_as(lambda x: strategy.run(replica, args=(x,)))(tf.constant([1.0, float(rank)]))
    np.testing.assert_allclose(gradient, np.full(2, size * (size + 1) / 2))
    np.testing.assert_array_equal(gathered, np.concatenate([[1.0, r] for r in range(size)]))
    np.testing.assert_allclose(single, [1.0, (size - 1) / 2])
    assert int(several) == (size * (size - 1) // 2) // size


def test_every_batch_is_shared_out(strategy, rank, size):
    data = tf.data.Dataset.from_tensor_slices((np.arange(22), np.arange(22) * 2)).batch(5)
    mine = [(x.numpy(), y.numpy()) for x, y in strategy.experimental_distribute_dataset(data)]
    assert len(mine) == 5
    for place in range(5):
        theirs = hvd.allgather_object(mine[place][0])
        np.testing.assert_array_equal(np.concatenate(theirs), np.arange(22)[5 * place : 5 * place + 5])
        np.testing.assert_array_equal(mine[place][1], mine[place][0] * 2)
    single = strategy.experimental_distribute_dataset(tf.data.Dataset.range(size * 3).batch(size))
    assert [int(x[0]) for x in single] == [rank, rank + size, rank + 2 * size]

    def make(context):
        assert context.get_per_replica_batch_size(6 * size) == 6
        return tf.data.Dataset.range(100).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)

    assert next(iter(strategy.distribute_datasets_from_function(make))).numpy().tolist() == [rank, rank + size]


def build_model():
    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(40, activation="tanh"), tf.keras.layers.Dense(40), tf.keras.layers.Dense(1)])


def flat(model):
    return np.concatenate([np.asarray(v).ravel() for v in model.trainable_variables])


def train(strategy, steps, global_batch):
    """The custom loop of TensorFlow's own tutorial."""
    x = np.random.default_rng(0).standard_normal((steps, global_batch, 8)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 8), x.reshape(-1, 8).sum(1, keepdims=True))).batch(global_batch)
    with strategy.scope():
        model, optimizer = build_model(), tf.keras.optimizers.SGD(0.01, momentum=0.9)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum(tf.square(model(x) - y), 1), global_batch_size=global_batch)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    losses = [float(train_step(x, y)) for x, y in strategy.experimental_distribute_dataset(data)]
    return model, losses


def test_training_equals_one_process(strategy, size):
    """Batches that do not divide by the number of ranks included."""
    global_batch = 6 * size + 1
    model, losses = train(strategy, 20, global_batch)
    alone, expected = train(tf.distribute.OneDeviceStrategy("/cpu:0"), 20, global_batch)
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    np.testing.assert_allclose(flat(model), flat(alone), atol=1e-5)
    assert all(np.array_equal(flat(model), theirs) for theirs in hvd.allgather_object(flat(model)))
    assert losses[-1] < losses[0]


def test_compressed_training(size):
    before = hvdlite.metrics()
    model, _ = train(hvd.MirroredStrategy(compression="powersgd:rank=1"), 8, 4 * size)
    after = hvdlite.metrics()
    assert all(np.array_equal(flat(model), theirs) for theirs in hvd.allgather_object(flat(model)))
    assert size == 1 or after["dense_bytes"] - before["dense_bytes"] > 2 * (after["wire_bytes"] - before["wire_bytes"])
