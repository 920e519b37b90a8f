"""What ranks do differently is the same error on each, with its cause, and in seconds."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite
import hvdlite.tensorflow as hvd


def gradient_of(variables, x=1.0):
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(v) * x for v in variables])
    return hvd.DistributedGradientTape(tape).gradient(loss, variables)


def agreed(text):
    assert len(set(hvd.allgather_object(text))) == 1
    return text


def test_variables_of_other_shapes(run_as, odd, size):
    variables = [tf.Variable(tf.ones(3), name="first"), tf.Variable(tf.ones((4 if odd else 3, 2)), name="second")]
    with pytest.raises(hvdlite.MismatchError) as caught:
        run_as(gradient_of)(variables)
    assert f"'second' has shape (3, 2) on rank 0 but (4, 2) on rank {size - 1}" in agreed(str(caught.value))


def test_another_number_of_variables(odd):
    variables = [tf.Variable(1.0, name=f"v{'abc'[i]}") for i in range(3 if odd else 2)]
    with pytest.raises(hvdlite.MismatchError, match=r"rank 0 trains 'nothing' where rank \d trains 'vc'"):
        gradient_of(variables)


@pytest.fixture
def _numbered_from_one():
    yield
    tf.keras.backend.clear_session()


@pytest.mark.usefixtures("_numbered_from_one")
def test_layers_may_be_numbered_differently(odd, rank, size):
    """One rank has built a model more, so that Keras counts on from there."""
    if odd:
        tf.keras.layers.Dense(2).build((None, 3))
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 3))
    hvd.broadcast_variables(layer.variables, 0)
    for gradient in gradient_of(layer.trainable_variables, 1.0 + rank):
        np.testing.assert_allclose(gradient, np.full(gradient.shape, 1 + (size - 1) / 2), rtol=1e-6)


def test_training_from_different_weights_ends_in_the_second_step(run_as, rank, size):
    """Not in the first: Horovod's scripts broadcast at its end."""
    variables = [tf.Variable(tf.ones(2), name="same"), tf.Variable(tf.fill((2,), float(rank)), name="different")]
    run = run_as(lambda: gradient_of(variables))
    run()
    with pytest.raises((hvdlite.SettingError, tf.errors.OpError)) as caught:
        run()
    text = str(caught.value)
    assert "ranks 0 and 1 start training from different weights: 1 of 2 parameters differ, first 'different'" in text
    assert "hvd.broadcast_variables(model.variables, root_rank=0)" in text


def test_broadcasting_at_the_end_of_the_first_step_is_in_time(rank, size):
    variables = [tf.Variable(tf.fill((2,), float(rank)))]

    @tf.function
    def step(is_first):
        (gradient,) = gradient_of(variables)
        variables[0].assign_sub(gradient)
        if is_first:
            hvd.broadcast_variables(variables, root_rank=0)

    for number in range(3):
        step(number == 0)
    np.testing.assert_allclose(variables[0], [-3.0, -3.0])


def test_errors_have_tensorflows_classes_too(run_as, odd, size):
    """Those that programs written for Horovod catch; a graph makes its own of whatever a function raises. The session goes on."""
    with pytest.raises(
        tf.errors.OpError if run_as is tf.function else tf.errors.FailedPreconditionError,
        match=rf"'x' has shape \(2,\) on rank 0 but \(3,\) on rank {size - 1}",
    ) as caught:
        run_as(lambda: hvd.allreduce(tf.ones(3 if odd else 2), name="x"))()
    assert run_as is tf.function or isinstance(caught.value, hvdlite.MismatchError)
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot share equally") as caught:
        run_as(lambda: hvd.alltoall(tf.ones(size + 1)))()
    assert run_as is tf.function or isinstance(caught.value, hvdlite.SettingError)
    assert float(run_as(lambda: hvd.allreduce(1.0, op=hvd.Sum))()) == size


def test_a_compressor_that_differs_is_named_in_the_graph_too(run_as, odd, size):
    variables = [tf.Variable(tf.ones((64, 64)), name="kernel")]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[0])
        return hvd.DistributedGradientTape(tape, compression="int8" if odd else "fp16").gradient(loss, variables)

    with pytest.raises((hvdlite.MismatchError, tf.errors.OpError), match=f"compression 'fp16' on rank 0 but 'int8' on rank {size - 1}"):
        run_as(step)()


def test_sparse_here_and_dense_there(odd, size):
    table = tf.Variable(tf.ones((4, 2)), name="table")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table if odd else tf.gather(table, [0, 1]))
    with pytest.raises(hvdlite.MismatchError, match="'table' is IndexedSlices on rank 0 but a dense tensor on another rank"):
        hvd.DistributedGradientTape(tape).gradient(loss, [table])


def test_a_gradient_that_comes_later_than_the_graph_was_made(odd, rank):
    early, late = tf.Variable(1.0, name="early"), tf.Variable(1.0, name="late")

    def step(with_late):
        with tf.GradientTape() as tape:
            loss = early * 2.0 + (late if with_late else 0.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, [early, late])

    compiled = tf.function(step)
    assert compiled(False)[1] is None
    if odd:
        assert float(compiled(True)[1]) > 0
    else:
        with pytest.raises(tf.errors.OpError, match="another rank has a gradient of 'late', which the graph of rank"):
            compiled(False)


def test_xla_is_refused_in_one_line(odd):
    variable = tf.Variable(1.0)
    with pytest.raises(ValueError, match="jit_compile=True, and XLA cannot call a communication library"):
        tf.function(lambda: gradient_of([variable]), jit_compile=True)()


def test_options_that_cannot_be():
    tape = tf.GradientTape()
    with pytest.raises(ValueError, match="op=Max given; Average, Sum or Adasum"):
        hvd.DistributedGradientTape(tape, op=hvd.Max)
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedGradientTape(tape, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="a set that is registered is expected"):
        hvd.DistributedGradientTape(tape, process_set=3)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tape, num_groups=2)
