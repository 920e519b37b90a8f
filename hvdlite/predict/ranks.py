"""What a rank of the measuring job does: times collectives, and encoding and decoding of the gradients that the user's script left.

``python -m hvdlite.predict.ranks FOLDER NAME``: reads ``FOLDER/request.json``, writes ``FOLDER/NAME.N.json`` on rank N.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import msgspec
import numpy as np

from .. import api as hvd
from ..arrays import Array, numpy_dtype
from ..buckets import Parameter, plan
from ..compression import AllGather, AllReduce, AllToAll, Compressor, ErrorFeedback, load
from ..negotiation import Signature, Vote
from ..operations import AllReduceOperation, Average
from ..operations._base import Operation
from ..telemetry.steps import GRADIENTS
from ._played import Kind, Played, Program, merged

SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Bytes, of the requests that are timed."""
PIECES = (0, 1 << 20)
"""Answers to what pieces an exchange should be in: as over wide connections, and over narrow ones."""
GATHERED_RANKS = (2, 4, 8, 16, 32, 64)
"""Numbers of ranks for which every compressor is played whose bytes grow with them."""
_SECONDS_PER_SIZE = 0.15
_ROUNDS = 40
_COLD = 4
_EVICTING_BYTES = 32 << 20
_BUSY_ROWS = 384  # milliseconds in which Python's lock is free, as in a backward pass
_LATE_SECONDS = 0.03
_LATE_BYTES = 1 << 20
_REPETITIONS = 5


class Task(msgspec.Struct, frozen=True):
    """What is to be measured: ``request.json``."""

    arms: tuple[str, ...] = ()
    """Compressors to time; none: collectives only."""
    num_ranks: tuple[int, ...] = ()
    """Numbers of ranks to play them for."""
    parameters: tuple[tuple[str, tuple[int, ...], str, int | None], ...] = ()
    """Name, shape, dtype and group, in the order in which they lie in the buckets and in the file of gradients."""
    bucket_bytes: int = 0


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One request: seconds on the clock, and of this process's CPU."""

    kind: Kind
    nbytes: int
    seconds: float
    cpu_seconds: float


class Played1(msgspec.Struct, frozen=True):
    """The exchanges of one compressor as one of ``num_ranks``: a program a bucket."""

    arm: str
    num_ranks: int
    piece_bytes: int
    programs: tuple[Program, ...]


class Found(msgspec.Struct, frozen=True):
    """What a rank measured."""

    samples: list[Sample]
    round_seconds: list[float]
    """From the submission of an operation to its beginning: a round of agreement, while the training thread sleeps."""
    busy_round_seconds: list[float]
    """The same while the training thread computes."""
    layouts: dict[str, tuple[tuple[str, ...], ...]]
    """Compressor -> the names in each of its buckets."""
    played: list[Played1]
    polling: float
    """Share of a core that it takes to wait for a message."""


@dataclass
class _Requests(Operation):
    """So many requests, one after the other."""

    name: str
    make: Callable[[], Any]
    times: int
    began: float = 0.0
    """When it was agreed on."""
    kind: ClassVar[str] = "measure"

    def __post_init__(self) -> None:
        self.signature = Signature(self.name, self.kind).encode()

    def program(self, vote: Vote) -> Generator[Any, Any, None]:
        """Ask, and ask again."""
        self.began = time.perf_counter()
        for _ in range(self.times):
            yield self.make()


def main() -> None:
    """Measure, and write."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    task = msgspec.json.decode((folder / "request.json").read_bytes(), type=Task)
    hvd.init()
    quiet, busy = _rounds()
    polling = _polling()
    samples = list(_collectives())
    layouts, played = _codecs(task, folder) if task.arms else ({}, [])
    path = folder / f"{name}.{hvd.rank()}.json"
    path.write_bytes(msgspec.json.encode(Found(samples, quiet, busy, layouts, played, polling)))
    hvd.shutdown()


def _timed(operation: _Requests) -> tuple[float, float]:
    hvd.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    hvd.world().engine.submit(operation).wait()
    return time.perf_counter() - start, time.process_time() - cpu


def _rounds() -> tuple[list[float], list[float]]:
    quiet = [_agreement(lambda: None) for _ in range(_ROUNDS)]
    a = np.ones((_BUSY_ROWS, _BUSY_ROWS), np.float32)
    busy = [_agreement(lambda: a @ a) for _ in range(_ROUNDS)]
    return quiet[1:], busy[1:]


def _agreement(meanwhile: Callable[[], object]) -> float:
    """From the submission of an operation to its beginning."""
    hvd.barrier()
    operation, start = _Requests("measure.round", _nothing, 0), time.perf_counter()
    handle = hvd.world().engine.submit(operation)
    while not handle.done() and meanwhile() is not None:
        pass
    handle.wait()
    return operation.began - start


def _polling() -> float:
    """All ranks but the first come late to a request: what its wait costs the first."""
    own = np.zeros(_LATE_BYTES, np.uint8)

    def late() -> AllGather:
        if hvd.rank():
            time.sleep(_LATE_SECONDS)
        return AllGather((own,))

    found = []
    for _ in range(1 + _REPETITIONS):
        _, alone = _timed(_Requests("measure.late", lambda: AllGather((own,)), 1))
        seconds, cpu = _timed(_Requests("measure.late", late, 1))
        found.append(max(0.0, cpu - alone) / seconds)
    return median(found[1:])


def _nothing() -> None:
    raise AssertionError("nothing is asked for")


def _collectives() -> Iterator[Sample]:
    """Every kind and size, as often as fits, less the round that agrees on it."""
    ranks, allocate = hvd.size(), hvd.world().transport.allocate
    memory = allocate(_COLD * SIZES[-1], "uint8")
    memory[:] = 0
    for size in SIZES:
        arrays = cycle([memory[start : start + size] for start in range(0, memory.size, SIZES[-1])])  # a gradient is not in the cache either
        requests: dict[Kind, Callable[[], Any]] = {
            "allreduce": lambda arrays=arrays: AllReduce(next(arrays).view(np.float32), resident=True, settled=True, factor=1.0),  # type: ignore[misc]
            "allgather": lambda arrays=arrays: AllGather((next(arrays),)),  # type: ignore[misc]
            "alltoall": lambda arrays=arrays, size=size: AllToAll([(next(arrays)[: size // ranks // 4 * 4],)] * ranks),  # type: ignore[misc]
        }
        for kind, make in requests.items():
            name = f"measure.{kind}"
            once = max(_agreed(_timed(_Requests(name, make, 1))[0]), 1e-5)
            count = max(1, min(50, int(_SECONDS_PER_SIZE / _REPETITIONS / once)))
            for _ in range(_REPETITIONS):
                nothing, many = _timed(_Requests("measure.round", _nothing, 0)), _timed(_Requests(name, make, count))
                yield Sample(kind, size, max(0.0, (many[0] - nothing[0]) / count), max(0.0, (many[1] - nothing[1]) / count))


def _agreed(seconds: float) -> float:
    return float(np.asarray(hvd.broadcast(np.array([seconds]), 0, name="measure.agreed"))[0])


def _codecs(task: Task, folder: Path) -> tuple[dict[str, tuple[tuple[str, ...], ...]], list[Played1]]:
    parameters = [Parameter(name, shape, dtype, group) for name, shape, dtype, group in task.parameters]
    gradients = dict(_read(folder / GRADIENTS, parameters))
    layouts, played = {}, []
    evicting = np.zeros((2, _EVICTING_BYTES), np.uint8)
    for arm in task.arms:
        compressor = load(arm)
        buckets = plan(parameters, compressor, task.bucket_bytes)
        layouts[arm] = tuple(tuple(p.name for p in bucket.parameters) for bucket in buckets)
        for num_ranks in sorted({*task.num_ranks, *(GATHERED_RANKS if is_gathered(compressor) else ())}):
            for piece_bytes in PIECES:
                hvd.barrier()
                play = Played(num_ranks, piece_bytes)
                given = [(bucket.parameters, load(arm) if bucket.compressed else None) for bucket in buckets]
                runs = []
                for _ in range(1 + _REPETITIONS):
                    memory = [np.concatenate([gradients[p.name].reshape(-1) for p in members]) for members, _ in given]
                    np.copyto(evicting[0], evicting[1])  # as a forward and a backward pass leave the caches
                    runs.append([_exchanged(play, number, *bucket, flat) for number, (bucket, flat) in enumerate(zip(given, memory, strict=True))])
                programs = tuple(merged(list(of_bucket)) for of_bucket in zip(*runs[1:], strict=True))  # the first one allocates
                played.append(Played1(arm, num_ranks, piece_bytes, programs))
                if not play.asks_for_pieces:
                    break
    return layouts, played


def is_gathered(compressor: Compressor) -> bool:
    """Whether what it sends grows with the number of ranks."""
    inner = compressor.inner if isinstance(compressor, ErrorFeedback) else compressor
    return inner.collective == "allgather"


def _exchanged(play: Played, number: int, members: tuple[Parameter, ...], compressor: Compressor | None, flat: Array) -> Program:
    layout = [(p.name, p.shape) for p in members]
    return play(AllReduceOperation(f"bucket.{number}", [flat], Average, play.num_ranks, 0, compressor=compressor, layout=layout).program(Vote.ALL))


def _read(path: Path, parameters: list[Parameter]) -> Iterator[tuple[str, Array]]:
    raw, start = np.fromfile(path, np.uint8), 0
    for p in parameters:
        yield p.name, raw[start : start + p.nbytes].view(numpy_dtype(p.dtype)).reshape(p.shape)
        start += p.nbytes


if __name__ == "__main__":
    main()
