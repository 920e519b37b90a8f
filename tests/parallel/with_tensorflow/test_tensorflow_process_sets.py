"""Process sets in TensorFlow: collectives, tapes, layers and Keras' optimizers of some of the ranks, eagerly and in graphs."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.keras
import hvdlite.tensorflow as hvd


@pytest.fixture(scope="module")
def sets(_world):
    """Disjoint ones: even and odd ranks."""
    made = [hvd.add_process_set(range(first, hvd.size(), 2)) for first in (0, 1)]
    yield made
    assert all(hvd.remove_process_set(s) for s in made)


@pytest.fixture
def mine(sets):
    return next(s for s in sets if s.included())


@pytest.fixture
def theirs(sets):
    return next(s for s in sets if not s.included())


@pytest.fixture(params=["eager", "graph"])
def run_as(request):
    return tf.function if request.param == "graph" else lambda f: f


def test_collectives_and_their_derivatives_are_those_of_the_set(run_as, mine, rank):
    x = tf.Variable([[1.0 + rank, 2.0]])

    def step():
        with tf.GradientTape(persistent=True) as tape:
            total = hvd.allreduce(x, op=hvd.Sum, process_set=mine)
            gathered = hvd.allgather(x, process_set=mine)
            sent = hvd.broadcast(x, mine.ranks[-1], process_set=mine)
            rows, _ = hvd.alltoall(tf.repeat(x, mine.size(), 0), [1] * mine.size(), process_set=mine)
            share = hvd.reducescatter(tf.repeat(x, mine.size(), 0), op=hvd.Sum, process_set=mine)
        found = [total, gathered, sent, rows, share]
        slices = hvd.allreduce(tf.IndexedSlices(x, tf.constant([0]), tf.constant([1, 2])), process_set=mine)
        return found, [tape.gradient(y, x) for y in found], slices.values

    found, slopes, slices = run_as(step)()
    everyone = np.array([[1.0 + r, 2.0] for r in mine.ranks])
    n = len(everyone)
    for tensor, expected in zip(found, [everyone.sum(0)[None], everyone, everyone[-1:], everyone, everyone.sum(0)[None]], strict=True):
        np.testing.assert_allclose(tensor, expected)
    is_root = rank == mine.ranks[-1]
    for slope, expected in zip(slopes, [n, 1, float(is_root), n, n * n], strict=True):
        np.testing.assert_allclose(slope, np.full((1, 2), expected))
    np.testing.assert_allclose(slices, everyone / n)


def test_a_rank_outside_is_told_when_the_graph_is_traced(mine, theirs):
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, lambda t, process_set: hvd.broadcast(t, 0, process_set=process_set)):
        for wrapped in (call, lambda t, process_set, call=call: tf.function(lambda: call(t, process_set=process_set))()):
            with pytest.raises(hvd.ProcessSetError, match="is not a member of the provided process set"):
                wrapped(tf.ones((2, 2)), process_set=theirs)


def test_numbers_of_a_set_are_found_when_the_graph_runs(run_as, mine, theirs):
    numbers = run_as(lambda: [op(n) for n in (0, mine.process_set_id, theirs.process_set_id, 99) for op in (hvd.size_op, hvd.process_set_included_op)])()
    assert [int(n) for n in numbers] == [hvd.size(), 1, mine.size(), 1, theirs.size(), 0, -3, -3]


@pytest.mark.parametrize("compression", [hvd.Compression.none, "powersgd:rank=1"])
def test_a_tape_averages_over_the_set_and_leaves_other_ranks_alone(run_as, sets, rank, compression):
    even = sets[0]
    w = tf.Variable(np.full((4, 3), 0.5, np.float32))
    x = tf.constant(np.random.default_rng(rank).standard_normal((2, 4)).astype(np.float32))

    @run_as
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ w)
        tape = hvd.DistributedGradientTape(tape, compression=compression, process_set=even)
        return tape.gradient(loss, w)

    found = [step() for _ in range(3)][-1].numpy()
    own = {r: np.random.default_rng(r).standard_normal((2, 4)).astype(np.float32).sum(0)[:, None].repeat(3, 1) for r in range(hvd.size())}
    np.testing.assert_allclose(found, np.mean([own[r] for r in even.ranks], 0) if even.included() else own[rank], atol=1e-5)


def test_normalisation_is_over_the_batches_of_the_set(mine, rank):
    layer = hvd.SyncBatchNormalization(process_set=mine)
    batches = {r: np.random.default_rng(r).standard_normal((5 + r, 3)).astype(np.float32) for r in mine.ranks}
    found = layer(tf.constant(batches[rank]), training=True)
    whole = np.concatenate([batches[r] for r in mine.ranks])
    np.testing.assert_allclose(found, (batches[rank] - whole.mean(0)) / np.sqrt(whole.var(0) + layer.epsilon), atol=1e-5)


def test_an_optimizer_of_a_set_steps_alone_elsewhere(sets, rank):
    even = sets[0]
    for make in (hvd.DistributedOptimizer, hvdlite.keras.DistributedOptimizer):
        variable = tf.keras.Variable([1.0, 2.0])
        optimizer = make(tf.keras.optimizers.SGD(1.0), process_set=even)
        optimizer.apply_gradients([(tf.constant([1.0, float(rank)]), variable)])
        mean = np.mean(even.ranks) if even.included() else float(rank)
        np.testing.assert_allclose(variable, [0.0, 2.0 - mean])


def test_state_is_shared_within_the_set(mine, rank):
    variable = tf.Variable([float(rank)])
    hvd.broadcast_variables([variable], mine.ranks[-1], process_set=mine)
    assert variable.numpy().tolist() == [float(mine.ranks[-1])]
    assert hvd.broadcast_object(rank, mine.ranks[0], process_set=mine) == mine.ranks[0]
    assert hvd.broadcast_object_fn(mine.ranks[0], process_set=mine)(rank) == mine.ranks[0]
    assert hvd.allgather_object(rank, process_set=mine) == mine.ranks
