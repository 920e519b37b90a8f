"""Horovod's way, on Keras's torch backend: a distributed optimizer, its callbacks, and a learning rate that warms up.

hvdliterun -np 2 python examples/keras_torch_backend.py

The lines that mention hvd are those of a Horovod script. The first model.compile() and fit() could be a training loop of your own.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "torch"  # before keras is imported

import keras
import numpy as np
from keras import layers

import hvdlite.keras as hvd


def make_data():
    """Points of three noisy spirals, the same everywhere."""
    rng = np.random.default_rng(0)
    radius, arm = rng.uniform(0.1, 1, 6000), rng.integers(0, 3, 6000)
    angle = 4 * radius + arm * 2 * np.pi / 3 + rng.normal(0, 0.1, 6000)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype("float32")
    return points, arm.astype("int32")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.003, help="of one rank; multiplied by the number of ranks")
    parser.add_argument("--save", default="spirals.keras", help="where rank 0 leaves the best model")
    args = parser.parse_args()
    hvd.init()
    points, arms = make_data()
    x, y = hvd.shard(points[:5000], arms[:5000])

    model = keras.Sequential([
        layers.Input((2,)), layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu"), layers.Dense(3),
    ])  # fmt: skip
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(args.lr * hvd.size()), compression=hvd.Compression.fp16)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(
        x, y, batch_size=32, epochs=args.epochs, verbose=2 if hvd.rank() == 0 else 0,
        validation_data=hvd.shard(points[5000:], arms[5000:], equal=False),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(args.lr * hvd.size(), warmup_epochs=2),
            hvd.callbacks.BestModelCheckpoint("val_accuracy", mode="max", filepath=args.save),
        ],
    )  # fmt: skip
    if hvd.rank() == 0:
        plain = keras.saving.load_model(args.save)  # needs no hvdlite
        accuracy = plain.evaluate(points[5000:], arms[5000:], verbose=0)[1]
        print(f"{hvd.size()} ranks: {100 * max(history.history['val_accuracy']):.1f} % while training, {100 * accuracy:.1f} % from {args.save}")


if __name__ == "__main__":
    main()
