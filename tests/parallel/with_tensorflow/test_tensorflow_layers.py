"""Batch normalisation over the ranks is that of one process with all their batches."""

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd


def step_of(layer, variables):
    def step(x, weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y * y * weights)
        return y, *tape.gradient(loss, [x, *variables])

    return step


@pytest.mark.parametrize(("shape", "axis"), [((6,), -1), ((3, 4, 5), -1), ((5, 3, 4), 1)], ids=["dense", "channels last", "channels first"])
@pytest.mark.parametrize("rows", ["even", "uneven", "one rank has none"])
def test_equals_one_process_with_the_whole_batch(shape, axis, rows, run_as, rank, size):
    """Outputs, moving moments, and all gradients: the input's too, though other ranks' losses depend on it."""
    counts = {"even": [4] * size, "uneven": [2 + 3 * r for r in range(size)], "one rank has none": [5] * (size - 1) + [0 if size > 1 else 5]}[rows]
    rng = np.random.default_rng(0)
    whole = (3 + rng.standard_normal((sum(counts), *shape))).astype(np.float32)
    weights = rng.standard_normal(whole.shape).astype(np.float32)
    mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    layers = [hvd.SyncBatchNormalization(axis=axis), tf.keras.layers.BatchNormalization(axis=axis)]
    found = []
    for layer, rows_of in zip(layers, (mine, slice(None)), strict=True):
        layer.build((None, *shape))
        found.append(run_as(step_of(layer, [layer.gamma, layer.beta]))(tf.constant(whole[rows_of]), tf.constant(weights[rows_of])))
    (y, dx, dgamma, dbeta), (y_alone, dx_alone, dgamma_alone, dbeta_alone) = found
    np.testing.assert_allclose(y, y_alone[mine], atol=2e-4)
    np.testing.assert_allclose(dx, dx_alone[mine], atol=2e-3)
    np.testing.assert_allclose(hvd.allreduce(dgamma, op=hvd.Sum), dgamma_alone, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(hvd.allreduce(dbeta, op=hvd.Sum), dbeta_alone, rtol=1e-4, atol=1e-3)
    for name in ("moving_mean", "moving_variance"):
        np.testing.assert_allclose(getattr(layers[0], name), getattr(layers[1], name), rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(layers[0](whole[mine]), layers[1](whole[mine]), atol=1e-3)  # not training: nothing is communicated


def test_variance_survives_a_mean_far_from_zero(rank, size):
    """The difference of mean squares would be wrong by a hundredth."""
    whole = (300 + np.random.default_rng(0).standard_normal((8 * size, 3))).astype(np.float32)
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(whole[8 * rank : 8 * rank + 8], training=True)
    np.testing.assert_allclose(layer.moving_variance, whole.astype(np.float64).var(0), rtol=1e-4)


def test_masked_steps_do_not_count(rank, size):
    whole = np.random.default_rng(1).standard_normal((2 * size, 5, 3)).astype(np.float32)
    mask = np.random.default_rng(2).random((2 * size, 5)) > 0.3
    layers = [hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()]
    mine = slice(2 * rank, 2 * rank + 2)
    y, alone = layers[0](whole[mine], training=True, mask=mask[mine]), layers[1](whole, training=True, mask=mask)
    np.testing.assert_allclose(y, alone[mine], atol=1e-4)


def test_half_precision_is_normalised_in_single(rank, size):
    whole = (40 + np.random.default_rng(1).standard_normal((4 * size, 3))).astype(np.float16)
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16")
    y = layer(whole[4 * rank : 4 * rank + 4], training=True)
    assert y.dtype == tf.float16
    np.testing.assert_allclose(hvd.allreduce(tf.cast(tf.reduce_sum(y, 0), tf.float32), op=hvd.Sum), np.zeros(3), atol=0.05 * size)


def test_it_is_saved_as_any_layer():
    layer = hvd.SyncBatchNormalization(momentum=0.7)
    again = tf.keras.layers.deserialize(tf.keras.layers.serialize(layer))
    assert isinstance(again, hvd.SyncBatchNormalization)
    assert again.momentum == 0.7


def test_what_it_cannot_do():
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)
    with pytest.raises(ValueError, match="synchronized=True"):
        hvd.SyncBatchNormalization(synchronized=True)
