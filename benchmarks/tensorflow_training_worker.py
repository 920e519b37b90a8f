"""One rank of tensorflow_training.py: MEETING MODEL ROUNDS BLOCK_SECONDS ADDRESSES ARMS...; rank 0 prints one line of JSON.

An arm is a compressor of hvdlite, "MultiWorkerMirroredStrategy", or one process without communication: "one process". ADDRESSES are the workers' for
the former, separated by commas, or "-".
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import hvdlite

STRATEGY, ONE_PROCESS, FORWARD = "MultiWorkerMirroredStrategy", "one process", "forward"


def meet_workers(addresses: str) -> None:
    """Tell TensorFlow who its workers are, before it is loaded: at free ports, which the ranks tell each other."""
    mine = "127.0.0.1" if addresses == "-" else addresses.split(",")[hvdlite.rank()]
    with socket.socket() as free:
        free.bind((mine, 0))
        workers = hvdlite.allgather_object(f"{mine}:{free.getsockname()[1]}")
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": hvdlite.rank()}})


def build(name: str) -> tuple[Any, tuple[int, ...]]:
    """The model, and the shape of a batch; those of _models.py."""
    import tensorflow as tf

    layers, Sequential, Input = tf.keras.layers, tf.keras.Sequential, tf.keras.Input
    tf.keras.utils.set_random_seed(0)
    if name.endswith("mlp"):
        width = {"mlp": 2048, "small-mlp": 1024}[name]
        return Sequential([Input((784,)), layers.Dense(width, "relu"), layers.Dense(width, "relu"), layers.Dense(10)]), (64, 784)
    convolutions = [layer for filters in (16, 32) for layer in (layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPool2D())]
    return Sequential([Input((28, 28, 1)), *convolutions, layers.Flatten(), layers.Dense(10)]), (64, 28, 28, 1)


def trainings(name: str, arms: list[str], strategy: Any) -> tuple[dict[str, Callable[[], object]], int]:
    """What a turn of each arm runs, and the samples of a batch."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    found: dict[str, Callable[[], object]] = {}

    def step_of(model: Any, optimizer: Any, shape: tuple[int, ...], arm: str) -> Callable[[], object]:
        rng = np.random.default_rng(0)
        inputs, labels = tf.constant(rng.standard_normal(shape, np.float32)), tf.constant(rng.integers(0, 10, shape[:1]))
        scale = shape[0] * (hvd.size() if arm == STRATEGY else 1)

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(inputs, training=True)) / scale
            if arm not in (STRATEGY, ONE_PROCESS):
                tape = hvd.DistributedGradientTape(tape, compression=arm)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            return loss

        if arm == ONE_PROCESS:
            found[FORWARD] = tf.function(lambda: loss_of(labels, model(inputs)))
        compiled = tf.function((lambda: strategy.run(step)) if arm == STRATEGY else step)
        return lambda: compiled()

    for arm in arms:
        if arm == STRATEGY:
            with strategy.scope():
                model, shape = build(name)
                optimizer = tf.keras.optimizers.SGD(0.01)
                optimizer.build(model.trainable_variables)
        else:
            model, shape = build(name)
            optimizer = tf.keras.optimizers.SGD(0.01)
        step = step_of(model, optimizer, shape, arm)
        found[arm] = (step if hvd.rank() == 0 else lambda: None) if arm == ONE_PROCESS else step  # alone on its core, while the others wait
    return found, shape[0]


def main() -> None:
    from _timing import alternated_ms

    _, name, rounds, block_seconds, addresses, *arms = sys.argv[1:]
    hvdlite.init()
    if STRATEGY in arms:
        meet_workers(addresses)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if STRATEGY in arms else None
    actions, batch = trainings(name, arms, strategy)
    for action in actions.values():
        hvdlite.barrier()
        for _ in range(2):
            action()  # traced, laid out anew
    step_ms = alternated_ms(actions, int(rounds), float(block_seconds), together=hvdlite.barrier, agreed=lambda mine: hvdlite.broadcast_object(mine, 0))
    sent = {}
    for arm in arms:
        if arm not in (STRATEGY, ONE_PROCESS):
            before = hvdlite.metrics()["wire_bytes"]
            actions[arm]()
            sent[arm] = hvdlite.metrics()["wire_bytes"] - before
    if hvdlite.rank() == 0:
        forward_ms = step_ms.pop(FORWARD)
        print(json.dumps({"step_ms": step_ms, "forward_ms": forward_ms, "step_bytes": sent, "batch": batch}), flush=True)
    hvdlite.barrier()


if __name__ == "__main__":
    main()
