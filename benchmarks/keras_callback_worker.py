"""The one process of keras_callback.py: BACKEND ROUNDS STEPS; prints one line of JSON."""

import json
import os
import sys
import time
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
import numpy as np
from _timing import alternated_ms
from keras_callback import AGAIN, BARE, CPU, WALL, WITH

import hvdlite.keras as hvd

BATCH = 64


def fit_of(steps: int, *, distributed: bool):
    """A fit of a model of its own, which is there and compiled after the first call."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([layers.Input((784,)), layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(10)])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((steps * BATCH, 784), np.float32), rng.integers(0, 10, steps * BATCH)

    def fit() -> None:
        model.fit(x, y, BATCH, verbose=0, shuffle=False, callbacks=[hvd.DataParallel()] if distributed else [])

    return fit


def main() -> None:
    rounds, steps = map(int, sys.argv[2:])
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    if keras.backend.backend() == "tensorflow":  # its pools share the cores with whatever else runs, and a step then takes one of two times
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    arms = {BARE: fit_of(steps, distributed=False), WITH: fit_of(steps, distributed=True), AGAIN: fit_of(steps, distributed=False)}
    cpu_seconds: dict[str, list[float]] = {arm: [] for arm in arms}

    def counted(arm: str):
        start = time.process_time()
        arms[arm]()
        cpu_seconds[arm].append(time.process_time() - start)

    wall = alternated_ms({arm: partial(counted, arm) for arm in arms}, rounds, 0.0)
    clocks = {WALL: wall, CPU: {arm: [1e3 * s for s in found[-rounds:]] for arm, found in cpu_seconds.items()}}  # less the first, which compiled
    print(json.dumps({clock: {arm: [ms / steps for ms in times] for arm, times in found.items()} for clock, found in clocks.items()}), flush=True)


if __name__ == "__main__":
    main()
