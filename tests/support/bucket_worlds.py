"""What tests of buckets share: a model, its gradients, and ranks that are threads."""

import math
import threading
from dataclasses import dataclass

import numpy as np

from hvdlite import compression
from hvdlite.buckets import GradientBuckets, Parameter
from hvdlite.engine import Engine
from hvdlite.settings import Settings
from hvdlite.telemetry.last import LastCollective
from hvdlite.telemetry.metrics import Metrics
from hvdlite.transports.local import LocalTransport
from hvdlite.world import World

MODEL = [
    Parameter("fc1.weight", (64, 32), "float32"),
    Parameter("fc1.bias", (64,), "float32"),
    Parameter("fc2.weight", (40, 64), "float32"),
    Parameter("fc2.bias", (40,), "float32"),
]


def alone(bucket_bytes: int = 4 << 20) -> World:
    transport, knobs, metrics = LocalTransport(), Settings(bucket_bytes=bucket_bytes), Metrics()
    return World(knobs, transport, Engine(transport, knobs, metrics, LastCollective(None, 0)), metrics)


def worlds_of(thread_world, size: int, **knobs) -> list[World]:
    made = thread_world(size, **knobs)
    return [World(made.settings, t, e, m) for t, e, m in zip(made.transports, made.engines, made.metrics, strict=True)]


def on_ranks(size: int, action) -> list[object]:
    """``action(rank)`` on threads; the results, exceptions included."""
    results: list[object] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = action(rank)
        except Exception as error:  # noqa: BLE001 - handed to the test
            results[rank] = error

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def step(buckets: GradientBuckets, gradients: dict[str, np.ndarray], order=None):
    for name in order or list(gradients):
        buckets.view(name)[...] = gradients[name]
        buckets.mark_ready(name)
    return buckets.finish()


def gradients(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.shape).astype(p.dtype) for p in MODEL}


@dataclass
class Counted(compression.Compressor):
    """Averages, and can ask for another treatment of the next exchange, as error feedback does when it flushes."""

    flushing: bool = False

    def exchange(self, bucket):
        mean = yield compression.AllReduce(bucket.flat.copy())
        return mean / bucket.num_ranks, compression.Dense(lambda: bucket.flat)

    def wire_bytes(self, shapes, num_ranks):
        return 4 * sum(map(math.prod, shapes))

    @property
    def signature(self):
        return "counted (flushing)" if self.flushing else "counted"
