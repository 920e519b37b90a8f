"""Training on P ranks is training on one process with a batch P times as large, eagerly and in graphs; and compressed training keeps its promises."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import hvdlite
import hvdlite.tensorflow as hvd
from hvdlite.compression import names

BATCH = 8
RECIPES = {
    "sgd": lambda lr=0.01: tf.keras.optimizers.SGD(lr, momentum=0.9),
    "adam": lambda lr=0.01: tf.keras.optimizers.Adam(lr),
}


def build_model(width=40, seed=0):
    """A layer that every compressor finds worth compressing, and others that none does."""
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(width, activation="tanh"), tf.keras.layers.Dense(width, activation="tanh"), tf.keras.layers.Dense(1)]
    return tf.keras.Sequential([tf.keras.Input((8,)), *layers])


def batches(step, count):
    """The batches of ``count`` workers in a step, of a fixed function."""
    x = np.random.default_rng(step).standard_normal((count, BATCH, 8)).astype(np.float32)
    return x, x.sum(-1, keepdims=True)


def stepper(model, optimizer, tape=lambda tape: tape):
    def step(x, y):
        with tf.GradientTape() as recorded:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape(recorded).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def flat(model):
    return np.concatenate([np.asarray(v).ravel() for v in model.trainable_variables])


def assert_equal_everywhere(model):
    mine = flat(model)
    assert np.isfinite(mine).all()
    assert all(np.array_equal(mine, theirs) for theirs in hvd.allgather_object(mine)), "the ranks' weights differ"


def exchanges():
    """Those that tapes have made, of variables that are still used: what earlier tests left may go at any time."""
    gc.collect()
    return [kept for key, kept in hvdlite.world().kept.items() if key[0] == "tape"]


def train(run_as, recipe, steps, rank, size, lr=0.01, **how):
    model = build_model()
    how = {key: value(model) if callable(value) else value for key, value in how.items()}
    step = run_as(stepper(model, RECIPES[recipe](lr), lambda tape: hvd.DistributedGradientTape(tape, **how)))
    for number in range(steps):
        x, y = batches(number, size)
        step(x[rank], y[rank])
    return model


def train_alone(recipe, steps, workers, lr=0.01):
    """Plain Keras on everybody's batches; hvdlite has no part in it."""
    model = build_model()
    step = tf.function(stepper(model, RECIPES[recipe](lr)))
    for number in range(steps):
        x, y = batches(number, workers)
        step(x.reshape(-1, 8), y.reshape(-1, 1))
    return model


@pytest.mark.parametrize("recipe", RECIPES)
def test_ranks_equal_one_process_with_the_whole_batch(run_as, recipe, rank, size):
    model = train(run_as, recipe, 30, rank, size)
    np.testing.assert_allclose(flat(model), flat(train_alone(recipe, 30, size)), atol=1e-5)
    assert_equal_everywhere(model)


@pytest.mark.parametrize("passes", [1, 2])
def test_the_optimizer_may_exchange_instead_of_the_tape(run_as, passes, rank, size):
    """Passes that make one step together: the batches of all passes are one batch."""
    model = build_model()
    optimizer = hvd.DistributedOptimizer(RECIPES["sgd"](), backward_passes_per_step=passes, average_aggregated_gradients=True)
    step = run_as(stepper(model, optimizer))
    for number in range(10):
        x, y = batches(number, size * passes)
        for p in range(passes):
            step(x[rank * passes + p], y[rank * passes + p])
    np.testing.assert_allclose(flat(model), flat(train_alone("sgd", 10, size * passes)), atol=1e-5)
    assert_equal_everywhere(model)


VARIANTS = {
    "predivide": {"gradient_predivide_factor": 4.0},
    "groups": {"groups": 3},
    "groups, predivide": {"groups": 2, "gradient_predivide_factor": 4.0},
    "groups of lists": {"groups": lambda model: [model.trainable_variables[:2], [model.trainable_variables[4]]]},
    "sum": {"op": hvd.Sum},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_option_changes_the_mean(variant, rank, size):
    how = VARIANTS[variant]
    lr = 0.01 / size if how.get("op") is hvd.Sum else 0.01
    model = train(tf.function, "sgd", 10, rank, size, lr, **how)
    np.testing.assert_allclose(flat(model), flat(train_alone("sgd", 10, size)), atol=1e-5)
    assert_equal_everywhere(model)


@pytest.mark.parametrize("spec", names())
def test_every_compressor_leaves_the_ranks_alike(spec, run_as, rank, size):
    assert_equal_everywhere(train(run_as, "sgd", 8, rank, size, compression=spec))


def test_a_compressor_of_the_users(run_as, rank, size):
    """Horovod's two methods, in double precision: nothing is lost, so the result is that of one process."""

    class Wide:
        @staticmethod
        def compress(tensor):
            return tf.cast(tensor, tf.float64), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tf.cast(tensor, ctx)

    model = train(run_as, "sgd", 8, rank, size, compression=lambda model: Wide)
    np.testing.assert_allclose(flat(model), flat(train_alone("sgd", 8, size)), atol=1e-5)
    assert_equal_everywhere(model)


def test_batches_of_other_sizes_trace_again_and_share_the_buckets(rank, size):
    """On one rank the function is traced again in a step in which it is not on the others; residuals live on."""
    model = build_model()
    step = tf.function(stepper(model, RECIPES["sgd"](), lambda tape: hvd.DistributedGradientTape(tape, compression="topk:density=0.1")))
    before = len(exchanges())
    for number in range(6):
        x, y = batches(number, size)
        rows = BATCH - (number + rank) % 3
        step(tf.constant(x[rank][:rows]), tf.constant(y[rank][:rows]))
    assert step.experimental_get_tracing_count() >= 3
    assert len(exchanges()) - before == 1
    assert_equal_everywhere(model)


def test_a_compressor_made_anew_in_every_step_is_the_same_one(rank, size):
    before = len(exchanges())
    model = train(lambda step: step, "sgd", 4, rank, size, compression=lambda model: hvd.Compression.topk(density=0.1))
    step = stepper(model, RECIPES["sgd"](), lambda tape: hvd.DistributedGradientTape(tape, compression=hvd.Compression.topk(density=0.1)))
    for number in range(4):
        x, y = batches(number, size)
        step(x[rank], y[rank])
    assert len(exchanges()) - before == 1
    assert exchanges()[-1][0].compressor.state_dict(), "nothing is remembered"
    del step, model
    assert len(exchanges()) == before, "an exchange outlives its variables"


def test_a_loop_in_a_graph_trains_as_one_step_at_a_time(rank, size):
    """As with Keras' steps_per_execution: no iteration hands over before the last one has ended."""
    model = build_model()
    step = stepper(model, RECIPES["sgd"](), hvd.DistributedGradientTape)

    @tf.function
    def steps(xs, ys):
        for i in tf.range(tf.shape(xs)[0]):
            step(xs[i], ys[i])

    mine = [(x[rank], y[rank]) for x, y in (batches(number, size) for number in range(12))]
    for part in (mine[:4], mine[4:]):
        steps(tf.stack([x for x, _ in part]), tf.stack([y for _, y in part]))
    np.testing.assert_allclose(flat(model), flat(train_alone("sgd", 12, size)), atol=1e-5)
    assert_equal_everywhere(model)


def test_ranks_whose_backward_passes_have_another_order(rank, size):
    """Gradients come in the order in which the graph was made, which may be any."""
    tf.keras.utils.set_random_seed(0)
    towers = [tf.Variable(tf.random.normal((300, 300)) / 300, name=f"tower{i}") for i in range(3)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            parts = {i: tf.reduce_sum(tf.square(x @ towers[i])) for i in (range(3) if rank == 0 else reversed(range(3)))}
            loss = sum(parts.values())
        for variable, gradient in zip(towers, hvd.DistributedGradientTape(tape).gradient(loss, towers), strict=True):
            variable.assign_sub(1e-3 * gradient)

    start, x = [t.numpy() for t in towers], np.random.default_rng(0).standard_normal((size, 4, 300)).astype(np.float32)
    step(x[rank])
    for before, tower in zip(start, towers, strict=True):
        expected = before - 1e-3 * np.mean([2 * part.T @ (part @ before) for part in x], axis=0)
        np.testing.assert_allclose(tower.numpy(), expected, atol=1e-4)


def test_two_models_in_one_graph(rank, size):
    """As in a GAN: two tapes, two exchanges, one function."""
    models = [build_model(), build_model(20)]
    steps = [stepper(m, RECIPES["sgd"](), hvd.DistributedGradientTape) for m in models]
    both = tf.function(lambda x, y: [step(x, y) for step in steps])
    for number in range(8):
        x, y = batches(number, size)
        both(x[rank], y[rank])
    np.testing.assert_allclose(flat(models[0]), flat(train_alone("sgd", 8, size)), atol=1e-5)
    for model in models:
        assert_equal_everywhere(model)


def embedding_step(run_as, table, weight, **how):
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table, rows) @ weight))
        return hvd.DistributedGradientTape(tape, **how).gradient(loss, [table, weight])

    return run_as(step)


def test_an_embedding_equals_its_dense_twin(run_as, rank, size):
    """Ranks look up different numbers of rows, with repetitions; the last one looks up none."""
    rng = np.random.default_rng(3)
    start = rng.standard_normal((10, 4)).astype(np.float32)
    tables = [tf.Variable(start), tf.Variable(start)]
    weights = [tf.Variable(np.ones((4, 2), np.float32)) for _ in tables]
    steps = [embedding_step(run_as, t, w, sparse_as_dense=dense) for t, w, dense in zip(tables, weights, (False, True), strict=True)]
    for number in range(4):
        rows = np.random.default_rng(number * 10 + rank).integers(0, 10, 0 if rank == size - 1 and size > 1 else 5 + rank)
        (sparse, _), (dense, _) = (step(tf.constant(rows, tf.int32)) for step in steps)
        assert isinstance(sparse, tf.IndexedSlices)
        assert size == 1 or not isinstance(dense, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(sparse), tf.convert_to_tensor(dense), atol=1e-6)
        for table, gradient in zip(tables, (sparse, dense), strict=True):
            table.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    np.testing.assert_allclose(*tables, atol=1e-6)
    np.testing.assert_allclose(*weights, atol=1e-6)


def test_what_no_rank_uses_stays_without_gradient_and_what_some_use_counts_as_zero_elsewhere(run_as, rank, size):
    used, unused, sometimes = (tf.Variable([1.0, 2.0], name=n) for n in ("used", "unused", "sometimes"))

    def step(x, with_sometimes):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(used * x)
            if with_sometimes:
                loss += tf.reduce_sum(sometimes)
        return hvd.DistributedGradientTape(tape).gradient(loss, {"u": used, "n": unused, "s": sometimes})

    run = run_as(step)
    for _ in range(3):
        found = run(tf.constant([1.0, rank]), rank == 0)
        assert found["n"] is None
        np.testing.assert_allclose(found["u"], [1.0, (size - 1) / 2], rtol=1e-6)
        np.testing.assert_allclose(found["s"], [1 / size, 1 / size], rtol=1e-6)


def test_unconnected_gradients_and_single_sources(rank, size):
    a, b = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = a * (1.0 + rank)
    tape = hvd.DistributedGradientTape(tape)
    assert isinstance(tape, tf.GradientTape)
    assert float(tape.gradient(loss, a)) == 1 + (size - 1) / 2
    assert tape.gradient(loss, b) is None
    assert float(tape.gradient(loss, b, unconnected_gradients="zero")) == 0


def test_gradients_with_respect_to_tensors(run_as, rank, size):
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x * (1.0 + rank))
        return tape.gradient(loss, x)

    np.testing.assert_allclose(run_as(step)(tf.ones(3)), np.full(3, 1 + (size - 1) / 2), rtol=1e-6)


def test_local_layers_keep_their_gradients(rank, size):
    shared, own = tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)
    model = tf.keras.Sequential([tf.keras.Input((3,)), shared, own])
    hvd.broadcast_variables(model.variables, 0)

    def gradients(tape_of):
        x = tf.fill((4, 3), 1.0 + rank)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape_of(tape).gradient(loss, model.trainable_variables)

    plain = gradients(lambda tape: tape)
    for scale in (True, False):
        found = gradients(lambda tape, scale=scale: hvd.PartialDistributedGradientTape(tape, local_layers=own, scale_local_gradients=scale))
        for mine, alone in zip(found[:2], plain[:2], strict=True):
            np.testing.assert_allclose(mine, np.mean(hvd.allgather_object(np.asarray(alone)), axis=0), rtol=1e-5)
        for mine, alone in zip(found[2:], plain[2:], strict=True):
            np.testing.assert_allclose(mine, alone / size if scale else alone, rtol=1e-6)


def test_an_overflow_on_one_rank_is_everybodys_and_leaves_residuals_alone(run_as, odd, rank, size):
    model = build_model()
    optimizer = RECIPES["sgd"]()
    optimizer.build(model.trainable_variables)

    def step(x, y, scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y)) * scale
        return hvd.DistributedGradientTape(tape, compression="topk:density=0.1").gradient(loss, model.trainable_variables)

    run = run_as(step)
    exchange = None
    for number in range(6):
        x, y = batches(number, size)
        overflow = number == 3
        before = None if exchange is None else {n: {q: np.array(a) for q, a in s.items()} for n, s in exchange.compressor.state_dict().items()}
        weights = flat(model)
        gradients = run(x[rank], y[rank], tf.constant(np.inf if overflow and odd else 1.0, tf.float32))
        finite = all(bool(tf.reduce_all(tf.math.is_finite(g))) for g in gradients)
        assert finite != overflow
        exchange = exchanges()[-1][0]
        if finite:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            assert not np.array_equal(flat(model), weights)
        else:
            after = exchange.compressor.state_dict()
            assert before
            assert all(np.array_equal(before[n][q], after[n][q]) for n in before for q in before[n])
    assert_equal_everywhere(model)


def test_a_loss_scale_optimizer_steps_and_skips_on_all_ranks_alike(run_as, odd, rank, size):
    model = build_model()
    optimizer = tf.keras.optimizers.LossScaleOptimizer(RECIPES["sgd"](), initial_scale=2.0**10)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(x) - y)))
        gradients = hvd.DistributedGradientTape(tape, compression="fp16").gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = run_as(step)
    for number in range(5):
        x, y = batches(number, size)
        before = flat(model)
        overflow = number == 2
        run(x[rank], y[rank] * np.float32(np.inf if overflow and odd else 1))
        assert np.array_equal(before, flat(model)) == overflow
    assert int(optimizer.inner_optimizer.iterations.numpy()) == 4
    assert set(hvd.allgather_object(float(optimizer.dynamic_scale.numpy()))) == {2.0**9}
    assert_equal_everywhere(model)
