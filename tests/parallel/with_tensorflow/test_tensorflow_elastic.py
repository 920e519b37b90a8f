"""Elastic states of TensorFlow: shared, restored, handed over; and failures that come out of a graph."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite
import hvdlite.tensorflow as hvd


def state_of(value, **attributes):
    return hvd.elastic.TensorFlowState([tf.Variable(tf.fill((2, 2), float(value))), tf.Variable(float(value))], **attributes)


def content(state):
    return [v.numpy().tolist() for v in state.variables], state.step


def test_rank_0s_state_is_everybodys_and_the_saved_one(rank):
    state = state_of(rank, step=10 + rank)
    state.sync()
    shared = content(state)
    assert shared == ([[[0.0, 0.0], [0.0, 0.0]], 0.0], 10)
    for variable in state.variables:
        variable.assign_add(tf.ones_like(variable))
    state.step = 11
    state.restore()
    assert content(state) == shared


def test_a_commit_goes_to_another_process(rank):
    state = state_of(3, step=1)
    state.commit()
    carried = state.snapshot()
    other = state_of(5, step=2)
    other.load_snapshot(carried)
    assert content(other) == content(state)
    other.step = 7
    other.restore()
    assert content(other) == content(state)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(hvdlite.SettingError, match="has no variables"):
        hvd.elastic.TensorFlowState([])
    with pytest.raises(hvdlite.SettingError, match="session='s'"):
        hvd.elastic.TensorFlowState([tf.Variable(1.0)], session="s")


def test_a_collective_that_fails_in_a_graph_is_followed_by_a_restore(run_as, rank, size):
    calls = []

    def total(values):
        return hvd.allreduce(values, op=hvd.Sum, name="elastic.total")

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        wrong = len(calls) == 1 and rank == size - 1
        state.variables[0].assign_add(tf.ones((2, 2)))
        return run_as(total)(tf.ones(3 if wrong else 2))

    state = state_of(0, step=0)
    np.testing.assert_allclose(train(state), np.full(2, float(size)))
    assert calls == [0, 0]
    np.testing.assert_allclose(state.variables[0], np.ones((2, 2)))


def test_other_errors_of_a_graph_are_the_callers():
    @tf.function
    def fails():
        tf.debugging.assert_equal(tf.random.uniform(()), 2.0)

    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.elastic.run(lambda state: fails())(state_of(0, step=0))
