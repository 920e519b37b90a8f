"""What tests of the engine share: waiting without hanging, and operations."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from hvdlite import compression
from hvdlite.engine import Engine
from hvdlite.operations import AllReduceOperation, Average
from hvdlite.submissions import Handle

LIMIT_S = 30


def result_of(handle: Handle):
    """Its result; a test fails instead of hanging."""
    assert handle._event.wait(LIMIT_S), f"{handle.name} hangs"
    return handle.wait()


def until(condition) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def reduction(name: str, array, rank: int, size: int, op=Average, **more) -> AllReduceOperation:
    return AllReduceOperation(name, [array], op, size, rank, **more)


@dataclass
class TwoRounds(compression.Compressor):
    """Two reductions of different sizes, as PowerSGD has them."""

    def exchange(self, bucket) -> Iterator:
        first = yield compression.AllReduce(bucket.flat[:3].copy())
        second = yield compression.AllReduce(bucket.flat.copy())
        assert (first == second[:3]).all()
        return second / bucket.num_ranks, compression.Dense(lambda: bucket.flat)

    def wire_bytes(self, shapes, num_ranks) -> int:
        return 0

    def accepts(self, shape) -> bool:
        return True

    @property
    def spec(self) -> str:
        return "two-rounds"


class Held:
    """Keeps an engine from taking what is submitted until all of it is."""

    def __init__(self, engine: Engine):
        self._channel = engine.channel

    def __enter__(self) -> None:
        self._take, self._channel._take = self._channel._take, lambda: False  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._channel._take = self._take  # type: ignore[method-assign]
        self._channel._common.wake.set()
