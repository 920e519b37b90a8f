"""Ranks that have no more data, in TensorFlow: eagerly, in graphs, through the tape."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd


def test_collectives_of_the_ranks_that_go_on(run_as, rank, size):
    others = list(range(1, size)) or [0]
    if rank in others:
        x = tf.constant([float(rank), 1.0])
        assert run_as(lambda: hvd.allreduce(x, op=hvd.Sum))().numpy().tolist() == [sum(others), len(others)]
        np.testing.assert_allclose(run_as(lambda: hvd.allreduce(x))(), [sum(others) / len(others), 1.0], rtol=1e-6)
        assert run_as(lambda: hvd.allgather(x[:1]))().numpy().tolist() == others
        slices = tf.IndexedSlices(tf.ones((1, 2)) * rank, tf.constant([rank]), tf.constant([size, 2]))
        found = run_as(lambda: tf.convert_to_tensor(hvd.allreduce(slices)))().numpy()
        np.testing.assert_allclose(found[:, 0], [r / len(others) if r in others else 0 for r in range(size)], rtol=1e-6)
    last = run_as(lambda: hvd.join())()
    assert last.dtype.is_integer
    assert hvd.allgather_object(int(last)) == [int(last)] * size


@pytest.mark.parametrize("spec", ["none", "topk:density=0.1"])
def test_uneven_steps_through_the_tape(spec, run_as, rank, size):
    """Dense gradients and slices; rank r takes 2 + r steps, and those that take a step stay alike."""
    table, weight = tf.Variable(tf.ones((6, 3))), tf.Variable(tf.ones((3, 500)))

    def step(number):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table, [number, rank]) @ weight)) / 1000.0
        gradients = hvd.DistributedGradientTape(tape, compression=spec).gradient(loss, [table, weight])
        table.assign_sub(0.01 * tf.convert_to_tensor(gradients[0]))
        weight.assign_sub(0.01 * gradients[1])

    step = run_as(step)
    for _ in range(2):
        weights = []
        for number in range(2 + rank):
            step(tf.constant(number))
            weights.append(table.numpy().tobytes() + weight.numpy().tobytes())
        last = int(hvd.join())
        assert last == size - 1
        everyone = hvd.allgather_object(weights)
        assert all(theirs == everyone[-1][: len(theirs)] for theirs in everyone)
        hvd.broadcast_variables([table, weight], root_rank=last)
