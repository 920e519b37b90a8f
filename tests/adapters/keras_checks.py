"""The laws of hvdlite.keras, on one backend and any number of ranks. tests/adapters/test_keras.py runs this file on every rank of a job."""

import os
import subprocess
import sys
from itertools import chain

import keras
import numpy as np
import pytest

import hvdlite
import hvdlite.keras as hvd
from hvdlite.compression import names
from hvdlite.keras._backends import exchange_class
from hvdlite.keras.optimizer import exchange_of

BACKEND = keras.backend.backend()
BATCH, STEPS = 8, 30
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:keras")  # its own
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


@pytest.fixture(scope="session", autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def rank():
    return hvd.rank()


@pytest.fixture
def size():
    return hvd.size()


@pytest.fixture
def shared_path(tmp_path_factory, rank):
    """A folder of rank 0's, on all ranks."""
    return hvd.broadcast_object(tmp_path_factory.mktemp("shared") if rank == 0 else None)


def build(seed=1, dropout=False, policy="float32"):
    """The same names in every model: they key what compressors remember."""
    keras.backend.clear_session()
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(40, activation="tanh"), keras.layers.Dense(40, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers[:3] + [keras.layers.Dropout(0.3)] * dropout + layers[3:])


def batches(steps, workers, seed=0):
    """Inputs and targets of a fixed function: (step, worker, row, column)."""
    x = np.random.default_rng(seed).normal(size=(steps, workers, BATCH, 8)).astype("float32")
    return x, x.sum(-1, keepdims=True)


def rows(array, worker=None):
    """What a worker trains on, or all of them, as fit takes it."""
    return (array if worker is None else array[:, worker]).reshape(-1, array.shape[-1])


def values(variable):
    return keras.ops.convert_to_numpy(variable.value)


def weights(model):
    return np.concatenate([values(v).ravel() for v in model.trainable_variables])


def assert_equal_everywhere(model):
    assert len(set(hvd.allgather_object(weights(model).tobytes()))) == 1, "the ranks' weights differ"


def fit(model, x, y, **how):
    return model.fit(x, y, **{"batch_size": BATCH, "shuffle": False, "verbose": 0, **how})


def loop(model, optimizer, x, y):
    """A training loop of the user's own."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(a, training=True) - b))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for a, b in zip(x, y, strict=True):
            step(tf.constant(a), tf.constant(b))
    elif BACKEND == "torch":
        import torch

        for a, b in zip(x, y, strict=True):
            model.zero_grad()
            torch.nn.functional.mse_loss(model(torch.from_numpy(a)), torch.from_numpy(b)).backward()
            with torch.no_grad():
                optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)
    else:
        import jax

        optimizer.build(model.trainable_variables)

        def loss(trainable, a, b):
            return jax.numpy.mean((model.stateless_call(trainable, [], a)[0] - b) ** 2)

        @jax.jit
        def step(trainable, state, a, b):
            return optimizer.stateless_apply(state, jax.grad(loss)(trainable, a, b), trainable)

        trainable, state = [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]
        for a, b in zip(x, y, strict=True):
            trainable, state = step(trainable, state, a, b)
        for variable, value in zip([*model.trainable_variables, *optimizer.variables], [*trainable, *state], strict=True):
            variable.assign(value)


@pytest.fixture(scope="module")
def alone():
    """Plain Keras in one process on everybody's batches; hvdlite has no part in it."""
    x, y = batches(STEPS, hvd.size())
    found = {}
    for name, make in OPTIMIZERS.items():
        model = build()
        model.compile(make(), "mse")
        fit(model, rows(x), rows(y), batch_size=BATCH * hvd.size())
        found[name] = weights(model)
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("how", ["compiled", "eager", "loop"])
def test_ranks_equal_one_process_with_the_whole_batch(optimizer, how, alone, rank, size):
    x, y = batches(STEPS, size)
    model, distributed = build(), hvd.DistributedOptimizer(OPTIMIZERS[optimizer]())
    if how == "loop":
        loop(model, distributed, x[:, rank], y[:, rank])
    else:
        model.compile(distributed, "mse", run_eagerly=how == "eager")
        fit(model, rows(x, rank), rows(y, rank))
    np.testing.assert_allclose(weights(model), alone[optimizer], atol=1e-5, rtol=1e-5)
    assert int(distributed.iterations) == STEPS
    assert np.abs(alone[optimizer] - weights(build())).max() > 0.01
    assert_equal_everywhere(model)


@pytest.mark.parametrize("averaged", [True, False], ids=["averaged", "summed"])
def test_two_passes_make_one_step(averaged, rank, size):
    """The batches of a step are one batch of twice the size; their sum is twice its gradient."""
    x, y = batches(12, size)
    model = build()
    model.compile(keras.optimizers.SGD(0.01 if averaged else 0.005, momentum=0.9), "mse")
    callback = hvd.DataParallel(backward_passes_per_step=2, average_aggregated_gradients=averaged)
    before = hvd.metrics()["dense_bytes"]
    fit(model, rows(x, rank), rows(y, rank), callbacks=[callback])
    sent = hvd.metrics()["dense_bytes"] - before
    plain = build()
    plain.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    fit(plain, rows(x), rows(y), batch_size=2 * BATCH * size)
    np.testing.assert_allclose(weights(model), weights(plain), atol=1e-5, rtol=1e-5)
    assert_equal_everywhere(model)
    each = round(2 * (size - 1) / size * weights(model).nbytes)
    assert sent == pytest.approx(6 * each, rel=0.01), "an exchange a step, of two batches"


@pytest.mark.parametrize("spec", sorted(names()))
def test_every_compressor_keeps_the_ranks_together(spec, rank, size):
    x, y = batches(8, size)
    model = build(seed=rank)  # the callback makes them equal
    model.compile(keras.optimizers.SGD(0.01), "mse")
    history = fit(model, rows(x, rank), rows(y, rank), epochs=3, callbacks=[hvd.DataParallel(spec)]).history["loss"]
    assert_equal_everywhere(model)
    assert np.isfinite(history).all()
    assert history[-1] < history[0]
    if size > 1 and spec != "none":
        assert exchange_of(model.optimizer).compressor is not None


def test_one_callback_shares_metrics_and_shows_one_bar(rank, size, capsys):
    """Validation sets of other sizes count by their samples, and a second fit goes on."""
    x, y = batches(4, size)
    model = build(seed=rank, dropout=True)
    model.compile("adam", "mse", metrics=["mae"])
    num = 30 if rank == 0 else 10
    vx, vy = batches(4, 1, seed=7 + rank)
    validation = (rows(vx)[:num], rows(vy)[:num])
    seen = []
    spy = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    history = fit(model, rows(x, rank), rows(y, rank), validation_data=validation, verbose=2, callbacks=[hvd.DataParallel(), spy]).history
    assert ("val_mae" in capsys.readouterr().out) == (rank == 0)
    mine = model.evaluate(*validation, verbose=0, return_dict=True)
    everyone = hvd.allgather_object((num, mine))
    for key, value in mine.items():
        expected = sum(n * theirs[key] for n, theirs in everyone) / sum(n for n, _ in everyone)
        assert history[f"val_{key}"][0] == pytest.approx(expected, rel=1e-5)
        assert (size == 1) or history[f"val_{key}"][0] != value
    assert len({str(h) for h in hvd.allgather_object(history)}) == 1
    assert seen[0]["val_loss"] == history["val_loss"][0]
    seeds = hvd.allgather_object([values(v).tolist() for v in model.variables if "seed_generator" in v.path])
    assert len(set(map(str, seeds))) == size, "dropout is the same on several ranks"
    fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.DataParallel()])
    assert int(model.optimizer.iterations) == 8
    assert_equal_everywhere(model)


def test_metric_average_callback_weighs_by_samples(rank, size):
    x, y = batches(4, size)
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    num = 30 if rank == 0 else 10
    vx, vy = batches(4, 1, seed=7 + rank)
    validation = (rows(vx)[:num], rows(vy)[:num])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    found = fit(model, rows(x, rank), rows(y, rank), validation_data=validation, callbacks=callbacks).history["val_loss"][0]
    everyone = hvd.allgather_object((num, model.evaluate(*validation, verbose=0)))
    assert found == pytest.approx(sum(n * loss for n, loss in everyone) / sum(n for n, _ in everyone), rel=1e-5)


@pytest.mark.parametrize("wrapped_first", [True, False], ids=["distribute the scaler", "scale the distributed"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(wrapped_first, rank, size):
    x, y = batches(6, size)
    bad = x.copy()
    bad[3, size - 1, 0, 0] = np.inf
    model = build()
    optimizer = keras.optimizers.SGD(0.01)
    callbacks = []
    if wrapped_first:
        scaler = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0), compression="topk:density=0.1")
    else:
        scaler = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(optimizer, compression="topk:density=0.1"), initial_scale=64.0)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.compile(scaler, "mse")
    fit(model, rows(bad[:3], rank), rows(y[:3], rank), callbacks=callbacks)
    before, state = weights(model), hvd.compression_state_dict(scaler)
    fit(model, rows(bad[3:4], rank), rows(y[3:4], rank))
    assert float(scaler.dynamic_scale) == 32.0
    assert np.array_equal(weights(model), before)
    if size > 1:
        after = hvd.compression_state_dict(scaler)["state"]
        residuals = {name: q["residual"] for name, q in state["state"].items()}
        assert residuals
        assert any(r.any() for r in residuals.values())
        assert all(np.array_equal(after[name]["residual"], r) for name, r in residuals.items())
    fit(model, rows(bad[4:], rank), rows(y[4:], rank))
    assert np.isfinite(weights(model)).all()
    assert not np.array_equal(weights(model), before)
    assert_equal_everywhere(model)


def test_mixed_precision_scales_by_itself(rank, size):
    """compile() puts a scaler around whatever optimizer it is given."""
    x, y = batches(3, size)
    model = build(seed=rank, policy="mixed_float16")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.DataParallel()])
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert np.isfinite(weights(model)).all()
    assert_equal_everywhere(model)


READER = """
import sys
sys.modules["hvdlite"] = None
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1])
np.save(sys.argv[2], model.predict(np.load(sys.argv[3]), verbose=0))
print("OPTIMIZER", type(model.optimizer).__name__, int(model.optimizer.iterations))
"""


def test_a_saved_model_needs_no_hvdlite(rank, size, shared_path):
    """And predicts the same there; here it loads with its optimizer distributed again."""
    x, y = batches(4, size)
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="fp16"), "mse")
    fit(model, rows(x, rank), rows(y, rank))
    if rank == 0:
        model.save(shared_path / "model.keras")
        np.save(shared_path / "x.npy", rows(x)[:5])
        (shared_path / "reader.py").write_text(READER)
        command = [sys.executable, *(str(shared_path / name) for name in ("reader.py", "model.keras", "found.npy", "x.npy"))]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "PRTE_", "HVDLITE_"))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean, check=False)
        assert "OPTIMIZER Adam 4" in done.stdout, done.stderr[-3000:]
        np.testing.assert_allclose(np.load(shared_path / "found.npy"), model.predict(rows(x)[:5], verbose=0), rtol=1e-6)
    hvdlite.barrier()
    again = hvd.load_model(shared_path / "model.keras", compression="fp16")
    fit(model, rows(x, rank), rows(y, rank))
    fit(again, rows(x, rank), rows(y, rank))
    assert int(again.optimizer.iterations) == 8
    np.testing.assert_array_equal(weights(again), weights(model))


def test_a_job_goes_on_from_its_checkpoint_bit_for_bit(rank, size, shared_path):
    x, y = batches(6, size)

    def run(epochs, folder):
        model = build(seed=rank)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        callback = hvd.DataParallel("topk:density=0.05", checkpoint_dir=folder and str(folder))
        history = fit(model, rows(x, rank), rows(y, rank), epochs=epochs, callbacks=[callback])
        return model, history

    whole, _ = run(4, None)
    run(2, shared_path / "job")
    resumed, history = run(4, shared_path / "job")
    assert history.epoch == [2, 3]
    assert np.array_equal(weights(resumed), weights(whole))


def test_early_stopping_stops_all_ranks_in_the_same_epoch(rank, size):
    """Behind DataParallel it judges everybody's metrics; before it, one rank's wish is everybody's."""
    x, y = batches(2, size)
    model = build()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    vx = rows(x, rank) * (1 + rank)
    stopper = keras.callbacks.EarlyStopping("val_loss", patience=1)
    history = fit(model, rows(x, rank), rows(y, rank), validation_data=(vx, rows(y, rank)), epochs=9, callbacks=[hvd.DataParallel(), stopper])
    assert history.epoch == [0, 1]

    def stop(epoch, logs):
        model.stop_training = rank == size - 1 and epoch == 1

    history = fit(model, rows(x, rank), rows(y, rank), epochs=9, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=stop), hvd.DataParallel()])
    assert history.epoch == [0, 1]


class Recompile(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.compile("sgd", "mse")


def test_a_model_compiled_anew_behind_the_callback_is_refused(rank, size):
    x, y = batches(2, size)
    model = build()
    model.compile("sgd", "mse")
    with pytest.raises(hvdlite.SettingError, match="compiled anew after"):
        fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.DataParallel(), Recompile()])


def test_a_model_that_was_not_compiled_is_refused():
    with pytest.raises(hvdlite.SettingError, match=r"not compiled.*call model\.compile"):
        hvd.DataParallel().set_model(build())


def test_a_model_without_variables_is_built_or_refused(rank, size):
    """TensorFlow makes them in the first step, when it would be too late."""
    x, y = batches(2, size)
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if BACKEND == "tensorflow":
        with pytest.raises(hvdlite.SettingError, match=r"has no variables before its first step.*keras\.layers\.Input"):
            fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.DataParallel()])
    else:
        fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.DataParallel()])
        assert_equal_everywhere(model)


def test_schedules_and_warm_up_follow_goyal(rank, size):
    """SGD's gathered steps are scaled with the rate: the same as gathering gradients and multiplying by the rate of the step."""
    x, y = batches(4, size)
    steps, rates = 4, []
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    warm = hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2)
    spy = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: rates.append(float(model.optimizer.learning_rate)))
    fit(model, rows(x, rank), rows(y, rank), epochs=2, callbacks=[warm, spy])
    expected = [0.1 * size / size * ((i + 1) / steps * (size - 1) / 2 + 1) for i in range(2 * steps)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    assert rates[-1] == pytest.approx(0.1 * size)

    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
    drop = hvd.callbacks.LearningRateScheduleCallback(0.01, lambda epoch: 0.1**epoch)
    fit(model, rows(x, rank)[:BATCH], rows(y, rank)[:BATCH], epochs=1, callbacks=[drop])
    gathered = values(model.optimizer.momentums[0]).copy()
    drop.set_model(model)
    drop.on_epoch_begin(1)
    np.testing.assert_allclose(values(model.optimizer.momentums[0]), gathered * 0.1, rtol=1e-5)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)


def test_a_rate_with_a_schedule_of_its_own_is_refused(rank, size):
    x, y = batches(1, size)
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))), "mse")
    with pytest.raises(hvdlite.SettingError, match="follows a schedule of its own"):
        fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)])


def test_shard_deals_every_row_once(rank, size):
    whole = np.arange(23)
    parts = hvd.allgather_object(hvd.shard(whole).tolist())
    assert sorted(chain(*parts)) == list(range(23 // size * size))
    assert len({len(p) for p in parts}) == 1
    assert sorted(chain(*hvd.allgather_object(hvd.shard(whole, equal=False).tolist()))) == list(range(23))
    a, b = hvd.shard(whole, whole * 2)
    assert (b == 2 * a).all()
    with pytest.raises(hvdlite.SettingError, match="cannot be cut into parts"):
        hvd.shard(iter([1]))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        elements = hvd.allgather_object([int(i) for i in hvd.shard(tf.data.Dataset.range(23))])
        assert sorted(chain(*elements)) == list(range(23 // size * size))


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("scales", [True, False])
def test_layers_that_each_rank_keeps_to_itself(scales, passes, rank, size):
    """The first layer follows this rank's gradients, the others those of all."""
    x, y = batches(3 * passes, size)
    model = build()
    own = model.layers[0]
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.05), local_layers=own, scale_local_gradients=scales, backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    model.compile(optimizer, "mse")
    start = [values(v) for v in own.variables]
    own_before = values(own.kernel) + rank
    own.kernel.assign(own_before)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own.variables)
    fit(model, rows(x[:passes], rank), rows(y[:passes], rank), callbacks=[callback])
    moved = values(own.kernel) - own_before
    twin = build()
    twin.layers[0].kernel.assign(own_before)
    twin.compile(keras.optimizers.SGD(0.05, gradient_accumulation_steps=passes if passes > 1 else None), "mse")
    fit(twin, rows(x[:passes], rank), rows(y[:passes], rank))
    alone = values(twin.layers[0].kernel) - own_before
    np.testing.assert_allclose(moved, alone / (size if scales else 1), atol=1e-6)
    assert np.abs(alone).max() > 1e-4
    assert len(start) == 2
    shared = np.concatenate([values(v).ravel() for layer in model.layers[1:] for v in layer.variables])
    assert len(set(hvd.allgather_object(shared.tobytes()))) == 1
    with pytest.raises(ValueError, match="local_layers="):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.05), local_layers=["first"])


def test_a_model_that_its_first_step_builds_is_broadcast_after_it(rank, size):
    """As in Horovod's examples: what the ranks did in the first step does not count."""
    x, y = batches(3, size)
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), "mse")
    fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(size - 1)])
    assert_equal_everywhere(model)
    bare = keras.Sequential([keras.layers.Dense(1)])
    bare.compile("sgd", "mse")
    if size > 1:
        with pytest.raises(hvdlite.SettingError, match="exchanges no gradients"):
            fit(bare, rows(x, rank), rows(y, rank), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


if BACKEND == "tensorflow":

    def test_tensorflows_own_variables_are_trained(rank, size):
        import tensorflow as tf

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        first, second = tf.Variable([1.0, 2.0], name="first"), tf.Variable(3.0)
        optimizer.apply_gradients([(tf.constant([1.0, 2.0]) * (rank + 1), first), (tf.constant(1.0), second)])
        mean = (size + 1) / 2
        np.testing.assert_allclose(first, [1.0 - mean, 2.0 - 2.0 * mean])
        np.testing.assert_allclose(second, 2.0)


def test_values_and_tensors_are_combined(rank, size):
    ones = keras.ops.ones((2,)) * (rank + 1)
    total = hvd.allreduce(ones, average=False)
    assert keras.ops.is_tensor(total)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(total), size * (size + 1) / 2)
    assert float(hvd.allreduce(rank)) == pytest.approx(sum(range(size)) // size)
    assert hvd.allgather(np.full((rank + 1, 1), rank)).ravel().tolist() == [r for r in range(size) for _ in range(r + 1)]
    share = hvd.reducescatter(np.arange(2.0 * size) * (rank + 1), op=hvd.Sum)
    np.testing.assert_allclose(share, np.array([2 * rank, 2 * rank + 1]) * (size * (size + 1) / 2))
    assert float(hvd.broadcast(keras.ops.convert_to_tensor(float(rank)), size - 1)) == size - 1
    with pytest.raises(hvdlite.SettingError, match="Keras 3 knows no global variables"):
        hvd.broadcast_global_variables(0)


def test_horovods_other_name_is_the_same_module():
    import hvdlite.tensorflow.keras as other

    assert [getattr(other, name) for name in hvd.__all__] == [getattr(hvd, name) for name in hvd.__all__]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": hvd.Max}, "Average or Sum is expected"),
        ({"backward_passes_per_step": 0}, "at least 1 is expected"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "splits the division of Average"),
        ({"process_set": object()}, "a set that is registered is expected"),
        ({"compression": "topp"}, "unknown compressor"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, message):
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **arguments)
    with pytest.raises(hvdlite.SettingError, match=r"a keras\.optimizers\.Optimizer is expected"):
        hvd.DistributedOptimizer("sgd")


# --- where ranks differ: every rank gets the error, and the session goes on ---


@pytest.fixture
def several(size):
    if size == 1:
        pytest.skip("alone, there is nobody to differ from")


@pytest.mark.usefixtures("several")
def test_other_first_weights_are_refused(rank, size):
    x, y = batches(2, size)
    model = build(seed=rank)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(Exception, match=r"start training from different weights.*hvd\.DataParallel\(\)"):
        fit(model, rows(x, rank), rows(y, rank))


@pytest.mark.usefixtures("several")
def test_an_optimizer_that_exchanges_nothing_is_refused(rank, size):
    x, y = batches(2, size)
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.compile("sgd", "mse")
    with pytest.raises(hvdlite.SettingError, match=r"model\.optimizer is a SGD that exchanges no gradients"):
        fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@pytest.mark.usefixtures("several")
def test_another_number_of_batches_is_refused_before_the_first(rank, size):
    x, y = batches(3, size)
    model = build()
    model.compile("sgd", "mse")
    mine = BATCH * (3 if rank == 0 else 2)
    with pytest.raises(hvdlite.HorovodInternalError, match=r"rank 0 has 3 batches an epoch and rank 1 has 2.*steps_per_epoch=2"):
        fit(model, rows(x, rank)[:mine], rows(y, rank)[:mine], callbacks=[hvd.DataParallel()])


@pytest.mark.usefixtures("several")
def test_a_callback_in_front_that_goes_its_own_way_is_refused(rank, size):
    x, y = batches(2, size)
    model = build()
    model.compile("sgd", "mse")
    own = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (1 + rank))
    with pytest.raises(hvdlite.SettingError, match=r"learning rate is 0\.1 on rank 0 but 0\.2 on rank 1.*put hvd\.DataParallel\(\) first"):
        fit(model, rows(x, rank), rows(y, rank), callbacks=[own, hvd.DataParallel()])


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("averaging", [hvd.DataParallel, hvd.callbacks.MetricAverageCallback])
def test_a_callback_that_judges_metrics_before_they_are_averaged_is_refused(averaging, rank, size):
    """Before the first step, on every rank, in ``fit`` and where the list is made by hand; other callbacks may stand in front."""
    x, y = batches(2, size)
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    before = weights(model)
    harmless, average = keras.callbacks.LambdaCallback(), averaging()
    judges = [keras.callbacks.EarlyStopping("loss"), keras.callbacks.ReduceLROnPlateau("loss"), hvd.callbacks.BestModelCheckpoint("loss")]
    for judge in judges:
        name = type(judge).__name__
        order = rf"order LambdaCallback, {name}, {averaging.__name__}, so {name}\(monitor='loss'\).*put {averaging.__name__} first in the list"
        with pytest.raises(hvdlite.SettingError, match=order):
            fit(model, rows(x, rank), rows(y, rank), callbacks=[harmless, judge, average])
        with pytest.raises(hvdlite.SettingError, match=order):
            keras.callbacks.CallbackList([harmless, judge, average], model=model)
    assert np.array_equal(weights(model), before)
    fit(model, rows(x, rank), rows(y, rank), callbacks=[harmless, average, *judges[:2]])
    assert_equal_everywhere(model)


@pytest.mark.usefixtures("several")
def test_a_scaler_that_decides_alone_is_refused(rank, size):
    x, y = batches(1, size)
    model = build()
    model.compile(keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))), "mse")
    with pytest.raises(Exception, match="each rank decides alone whether to skip a step"):
        fit(model, rows(x, rank), rows(y, rank))


if BACKEND != "torch":  # where Keras knows no such thing

    def test_several_steps_in_one_execution_are_the_same_steps(rank, size):
        x, y = batches(7, size)  # the last execution has one step
        found = []
        for steps in (1, 3):
            model = build()
            model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=steps)
            history = fit(model, rows(x, rank), rows(y, rank), epochs=2, callbacks=[hvd.DataParallel("topk:density=0.1")]).history
            assert int(model.optimizer.iterations) == 14
            assert_equal_everywhere(model)
            found.append((weights(model), history["loss"]))
        np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-6)
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


if BACKEND == "torch":

    class Halved(keras.Sequential):
        """A step of the user's, who looks at the gradients first."""

        def train_step(self, data):
            import torch

            x, y = data
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad * 0.5 for v in self.trainable_variables], self.trainable_variables)
            return {"loss": loss}

    @pytest.mark.usefixtures("several")
    @pytest.mark.parametrize("kind", [keras.Sequential, Halved])
    def test_gradients_travel_during_the_backward_pass_where_nobody_else_sees_them(kind, monkeypatch, rank, size):
        x, y = batches(6, size)
        under_way = []
        mean = exchange_class().mean
        monkeypatch.setattr(exchange_class(), "mean", lambda self, gradients: under_way.append(len(self._handed)) or mean(self, gradients))
        model = kind(build().layers)
        model.compile(keras.optimizers.SGD(0.01 if kind is keras.Sequential else 0.02), "mse")
        fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.DataParallel()])
        assert under_way == [6 if kind is keras.Sequential else 0] * 6
        plain = build()
        plain.compile(keras.optimizers.SGD(0.01), "mse")
        fit(plain, rows(x), rows(y), batch_size=BATCH * size)
        np.testing.assert_allclose(weights(model), weights(plain), atol=1e-5, rtol=1e-5)
        assert_equal_everywhere(model)


def test_a_rank_may_have_built_another_model_before(rank, size):
    """Keras then gives its layers other numbers, which are no difference between the ranks."""
    keras.backend.clear_session()
    if rank == 0:
        keras.layers.Dense(2).build((None, 3))
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), "mse")
    x, y = batches(2, size)
    fit(model, rows(x, rank), rows(y, rank), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert_equal_everywhere(model)


# --- hvd.elastic --------------------------------------------------------------------------------------------------------------------

EPOCHS, EPOCH_STEPS = 3, 4


def elastic_state(seed):
    model = build(seed)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return hvd.elastic.KerasState(model, epoch=0, batch=0)


class Lose(keras.callbacks.Callback):
    """Ends ``fit`` at a place in the state, as the loss of a rank does."""

    def __init__(self, state, place):
        super().__init__()
        self.state, self.place = state, place

    def on_train_batch_begin(self, batch, logs=None):
        if (self.state.epoch, self.state.batch) == self.place:
            raise KeyError("lost")


def elastic_fit(state, x, y, place=None):
    """As Horovod's elastic scripts fit, with its order of callbacks."""
    first = state.epoch * EPOCH_STEPS + state.batch
    data = ((x[n % len(x)], y[n % len(x)]) for n in range(first, EPOCHS * EPOCH_STEPS))
    kinds = (hvd.elastic.CommitStateCallback, hvd.elastic.UpdateBatchStateCallback, hvd.elastic.UpdateEpochStateCallback)
    callbacks = [hvd.DataParallel(), *(kind(state) for kind in kinds), Lose(state, place)]
    state.model.fit(data, epochs=EPOCHS - state.epoch, steps_per_epoch=EPOCH_STEPS, verbose=0, shuffle=False, callbacks=callbacks)


def test_a_state_goes_on_in_another_process_as_if_it_had_never_stopped(rank, size):
    """In the second epoch everything is lost but the snapshot: the rest of that epoch is shorter, and in the end the weights are the same bits."""
    inputs, targets = batches(5, size)
    x, y = inputs[:, rank], targets[:, rank]
    whole, part = elastic_state(1), elastic_state(1)
    elastic_fit(whole, x, y)
    with pytest.raises(KeyError, match="lost"):
        elastic_fit(part, x, y, place=(1, 2))
    carried = hvd.broadcast_object(part.snapshot() if rank == 0 else None)
    rest = elastic_state(2)
    if rank == 0:
        rest.load_snapshot(carried)
    rest.sync()
    assert (rest.epoch, rest.batch) == (1, 2)
    assert int(values(rest.model.optimizer.iterations)) == EPOCH_STEPS + 2
    elastic_fit(rest, x, y)
    assert (rest.epoch, rest.batch) == (EPOCHS, 0)
    assert int(values(rest.model.optimizer.iterations)) == EPOCHS * EPOCH_STEPS
    np.testing.assert_array_equal(weights(rest.model), weights(whole.model))


def test_after_a_failure_fit_goes_on_in_the_same_processes(rank, size):
    inputs, targets = batches(5, size)
    x, y = inputs[:, rank], targets[:, rank]
    whole, state = elastic_state(1), elastic_state(1)
    elastic_fit(whole, x, y)
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append((state.epoch, state.batch))
        try:
            elastic_fit(state, x, y, place=(1, 2) if len(calls) == 1 else None)
        except KeyError as error:
            raise hvd.HorovodInternalError("a collective has failed") from error

    train(state)
    assert calls == [(0, 0), (1, 2)]
    np.testing.assert_array_equal(weights(state.model), weights(whole.model))


def test_a_model_is_restored_with_its_optimizer(rank):
    state = elastic_state(rank)
    state.sync()
    assert_equal_everywhere(state.model)
    saved = weights(state.model)
    for variable in state.model.variables:
        variable.assign(np.zeros(variable.shape))
    state.model.optimizer.learning_rate = 0.5
    state.epoch = 7
    state.restore()
    assert state.epoch == 0
    assert float(values(state.model.optimizer.learning_rate)) == pytest.approx(0.01)
    np.testing.assert_array_equal(weights(state.model), saved)


def test_a_model_that_was_not_compiled_has_a_state_with_its_own_optimizer(rank):
    model, optimizer = build(rank), keras.optimizers.Adam(0.01 * (rank + 1))
    state = hvd.elastic.KerasState(model, optimizer, epoch=rank)
    state.sync()
    assert_equal_everywhere(model)
    assert (state.epoch, float(values(optimizer.learning_rate))) == (0, pytest.approx(0.01))
    other = hvd.elastic.KerasState(build(5), epoch=9)  # no optimizer at all
    other.restore()
    assert (other.optimizer, other.epoch) == (None, 9)


def test_a_model_that_was_not_built_has_no_state():
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
