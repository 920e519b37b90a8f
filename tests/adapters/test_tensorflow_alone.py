"""In a world of one, everything is what TensorFlow does without hvdlite; and what needs no other rank: names, groups, the list of names."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.compression import names
from hvdlite.tensorflow.tensors import copied
from hvdlite.tensorflow.variables import names_of, number_groups, parameters_of


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    monkeypatch.setenv("HVDLITE_TRANSPORT", "local")
    hvd.init()
    yield
    hvd.shutdown()


def gradients(tape_of, table, weight):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.gather(table, [0, 2, 0]) @ weight))
    return tape_of(tape).gradient(loss, [table, weight])


@pytest.mark.parametrize("how", [{}, {"compression": "topk:density=0.1"}, {"op": hvd.Sum}, {"gradient_predivide_factor": 3.0}, {"groups": 1}], ids=str)
@pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_tape_is_the_bare_tape(how, run):
    table, weight = tf.Variable(tf.random.normal((4, 3))), tf.Variable(tf.random.normal((3, 2)))
    plain = run(lambda: gradients(lambda tape: tape, table, weight))()
    ours = run(lambda: gradients(lambda tape: hvd.DistributedGradientTape(tape, **how), table, weight))()
    assert isinstance(ours[0], tf.IndexedSlices)
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(a), tf.convert_to_tensor(b))


def test_collectives_give_what_they_got():
    x = tf.constant([[1.0, 2.0]])
    for result in (hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), hvd.alltoall(x), hvd.reducescatter(x), hvd.allreduce(x, op=hvd.Max)):
        np.testing.assert_array_equal(result, x)
    np.testing.assert_array_equal(hvd.allreduce(x, prescale_factor=2.0), 2 * x)


def test_batch_normalisation_is_the_layer_of_keras():
    x = tf.random.normal((6, 3))
    ours, theirs = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    np.testing.assert_array_equal(ours(x, training=True), theirs(x, training=True))
    np.testing.assert_array_equal(ours.moving_variance, theirs.moving_variance)


def test_a_strategy_of_one_replica():
    strategy = hvd.MirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(3.0)
    assert float(strategy.reduce("SUM", strategy.run(lambda: variable * 2.0), axis=None)) == 6
    data = tf.data.Dataset.range(4).batch(2)
    assert [x.numpy().tolist() for x in strategy.experimental_distribute_dataset(data)] == [[0, 1], [2, 3]]


def test_every_compressor_has_a_name():
    assert set(names()) <= set(dir(hvd.Compression))
    assert hvd.Compression.resolve(hvd.Compression.none) is None
    assert hvd.Compression.resolve(hvd.Compression.fp16).spec == "fp16"
    assert hvd.Compression.topk(density=0.5).spec == "topk:density=0.5"
    with pytest.raises(AttributeError, match="has no 'zip'; choose one of"):
        _ = hvd.Compression.zip
    small, context = hvd.Compression.fp16.compress(tf.constant([1.0]))
    assert small.dtype == tf.float16
    assert hvd.Compression.fp16.decompress(small, context).dtype == tf.float32


def test_names_are_unique_and_do_not_tell_how_many_layers_came_before():
    layers = [tf.keras.layers.Dense(2), tf.keras.layers.Dense(2)]
    for layer in layers:
        layer.build((None, 3))
    variables = [v for layer in layers for v in layer.trainable_variables] + [tf.Variable(1.0), tf.Variable(1.0, name="block_2/x_1")]
    assert names_of(variables) == ["dense/kernel", "dense/bias", "dense/kernel#2", "dense/bias#2", "Variable", "block/x"]
    kernel, *_, scalar, _ = parameters_of(variables)
    assert (kernel.shape, kernel.dtype, scalar.shape) == ((3, 2), "float32", ())
    assert parameters_of([tf.Variable(tf.ones(2, tf.bfloat16))])[0].dtype == "bfloat16"


def test_groups():
    made = [tf.Variable(float(i)) for i in range(5)]
    assert list(number_groups(2, made).values()) == [0, 0, 0, 1, 1]
    assert number_groups([[made[4]], (made[0],)], made) == {id(made[4]): 0, id(made[0]): 1}
    assert number_groups(None, made) == number_groups(0, made) == number_groups([], made) == {}
    for wrong in (-1, 1.5, True, "all", [1, 2]):
        with pytest.raises(ValueError, match="groups should be a non-negative integer or a list of list"):
            number_groups(wrong, made)
    with pytest.raises(ValueError, match="must consist of"):
        number_groups([["a"]], made)
    with pytest.raises(ValueError, match="only appear once"):
        number_groups([[made[0]], [made[0]]], made)


def test_what_a_graph_returns_is_its_own():
    """TensorFlow takes aligned memory as it is: a result would change with the bucket that it was taken from."""
    memory = np.zeros(4096, np.float32)
    start = -memory.ctypes.data // 4 % 16
    views = [memory[start + shift : start + shift + 1000].reshape(10, 100) for shift in (0, 1, 16)]
    results = tf.function(lambda: tf.numpy_function(lambda: [copied(v) for v in views], [], [tf.float32] * 3))()
    memory[:] = 1
    assert all(not np.any(r) for r in results)
    assert [r.shape for r in results] == [(10, 100)] * 3
