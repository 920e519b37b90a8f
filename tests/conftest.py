"""What tests of several ranks share: the MPIs at hand, jobs of real ranks, and a world of ranks that are threads of this process."""

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from mpis import interpreters

from hvdlite.compression import AllGather, AllReduce, AllToAll, Broadcast
from hvdlite.compression._simulate import answer as answers_of
from hvdlite.engine import Engine
from hvdlite.settings import Settings
from hvdlite.telemetry.last import LastCollective
from hvdlite.telemetry.metrics import Metrics
from hvdlite.transports import Topology

ROOT = Path(__file__).resolve().parents[1]

hypothesis.settings.register_profile("ci", derandomize=True)  # there, a change is judged by what it changed; new examples are found at home
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.fixture(params=interpreters())
def mpi_python(request) -> str:
    """A Python with an MPI; the test runs on each."""
    return interpreters()[request.param]


@pytest.fixture
def any_mpi_python() -> str:
    """A Python with an MPI, for what does not depend on which."""
    return next(iter(interpreters().values()))


def environment(**more: str) -> dict[str, str]:
    """This process's, with hvdlite importable, and nothing that another launcher left behind."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def python(tmp_path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs code in a process of its own."""

    def run(code: str, *, executable: str = sys.executable, limit: float = 60, **more: str) -> "subprocess.CompletedProcess[str]":
        path = tmp_path / "program.py"
        path.write_text(code, encoding="utf-8")
        command = [executable, str(path)]
        return subprocess.run(
            command, env=environment(**more), cwd=tmp_path, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL, check=False
        )

    return run


# --- Ranks that are threads: a transport that delays and reorders, and notices when ranks ask for different things ---------------------


@dataclass
class Hub:
    """Where the ranks meet."""

    size: int
    delay: Callable[[int, int], float]  # (rank, lane) -> seconds until that rank sees an answer
    lock: threading.Lock = field(default_factory=threading.Lock)
    meetings: dict[Any, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    answers: dict[Any, list[Any]] = field(default_factory=dict)
    mail: dict[int, list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    subsets: dict[Any, "Hub"] = field(default_factory=dict)  # by ranks, and how many times they were made before

    def subset(self, ranks: tuple[int, ...], number: int) -> "Hub":
        with self.lock:
            return self.subsets.setdefault((ranks, number), Hub(len(ranks), lambda rank, lane: self.delay(ranks[rank], lane)))

    def all_faults(self) -> list[str]:
        return self.faults + [fault for hub in self.subsets.values() for fault in hub.faults]

    def meet(self, key: Any, rank: int, request: Any) -> None:
        with self.lock:
            present = self.meetings[key]
            present[rank] = request
            if len(present) == self.size:
                requests = [present[r] for r in range(self.size)]
                if len({_form(r) for r in requests}) != 1:
                    self.faults.append(f"{key}: ranks asked for different things: {[_form(r) for r in requests]}")
                if isinstance(requests[0], Broadcast):
                    self.answers[key] = [requests[requests[0].root].array.copy()] * self.size
                else:
                    self.answers[key] = [_copied(a) for a in answers_of(requests)]


def _form(request: Any) -> tuple[object, ...]:
    match request:
        case AllReduce(array, op):
            return ("allreduce", array.shape, str(array.dtype), op)
        case AllGather(arrays, None):
            return ("allgather", *((a.shape, str(a.dtype)) for a in arrays))
        case AllGather(_, sizes):
            return ("allgatherv", sizes)
        case AllToAll(parts, sizes) if sizes is not None:
            assert [sum(map(len, part)) for part in parts] == sizes[request.rank].tolist()
            return ("alltoallv", len(parts), sizes.tobytes())
        case AllToAll(parts):
            return ("alltoall", len(parts), *((a.shape, str(a.dtype)) for a in parts[0]))
        case Broadcast(array, root):
            return ("broadcast", array.shape, str(array.dtype), root)
    raise AssertionError(request)


def _copied(answer: Any) -> Any:
    return answer if isinstance(answer, np.ndarray) else [tuple(a.copy() for a in row) for row in answer]


@dataclass
class ThreadPending:
    hub: Hub
    key: Any
    rank: int
    request: Any
    delay: float
    ready_at: float = 0.0
    moved = False

    def done(self) -> bool:
        if self.key not in self.hub.answers:
            return False
        self.ready_at = self.ready_at or time.monotonic() + self.delay
        return time.monotonic() >= self.ready_at

    def answer(self) -> Any:
        given = self.hub.answers[self.key][self.rank]
        if isinstance(self.request, AllReduce | Broadcast):
            self.request.array[...] = given
            return self.request.array
        return given


class ThreadTransport:
    """One rank's side of a :class:`Hub`."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.topology = hub, Topology(rank, hub.size, rank, hub.size)
        self.calls = self.closed = self.abandoned = 0
        self.lanes: list[int] = []
        self._count: dict[int, int] = defaultdict(int)
        self.is_wide = False
        self.prepared: list[tuple[bool, int]] = []  # before each operation
        self.reserved = 0
        self.released: list[int] = []
        self._subsets: dict[tuple[int, ...], int] = defaultdict(int)

    def sent_bytes(self, request: Any) -> int:
        return request.sent_bytes(self.topology.size)

    num_carriers, num_nodes = 0, 1

    def holds(self, array: Any) -> bool:
        return False

    def piece_bytes(self, lane: int) -> int:
        return 2048  # so little that what tests exchange travels in several pieces

    def prepare(self, lane: int, wide: bool, turn: int) -> None:
        self.prepared.append((wide, turn))

    def start(self, request: Any, lane: int) -> ThreadPending:
        self.calls += 1
        self.lanes.append(lane)
        self._count[lane] += 1
        key, rank = (lane, self._count[lane]), self.topology.rank
        self.hub.meet(key, rank, request)
        return ThreadPending(self.hub, key, rank, request, self.hub.delay(rank, lane))

    def allocate(self, num_elements: int, dtype: str) -> np.ndarray:
        return np.zeros(num_elements, dtype)

    def reserve(self) -> int:
        self.reserved += 1
        return 64 * self.reserved  # what a transport does with places, tests/parallel knows

    def release(self, place: int) -> None:
        self.released.append(place)

    def subset(self, ranks: Any, places: Any) -> "ThreadTransport":
        ranks = tuple(ranks)
        self._subsets[ranks] += 1
        return ThreadTransport(self.hub.subset(ranks, self._subsets[ranks]), ranks.index(self.topology.rank))

    def post(self, rank: int, note: bytes) -> None:
        self.calls += 1
        self.hub.mail[rank].append((self.topology.rank, note))

    def notes(self) -> list[tuple[int, bytes]]:
        self.calls += 1
        found, self.hub.mail[self.topology.rank] = self.hub.mail[self.topology.rank], []
        return found

    def close(self) -> None:
        self.closed += 1

    def abandon(self) -> None:
        self.abandoned += 1


@dataclass
class ThreadWorld:
    """Engines that talk to each other."""

    hub: Hub
    transports: list[ThreadTransport]
    engines: list[Engine]
    metrics: list[Metrics]
    settings: Settings

    def stop(self, limit: float = 20.0) -> list[bool | None]:
        """Stop all at once, as ranks do; what each said, None where it hangs."""
        said: list[bool | None] = [None] * len(self.engines)

        def stop(rank: int) -> None:
            said[rank] = self.engines[rank].stop()

        threads = [threading.Thread(target=stop, args=(r,), daemon=True) for r in range(len(self.engines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit)
        return said


@pytest.fixture
def thread_world() -> Iterator[Callable[..., ThreadWorld]]:
    """Makes worlds of threads; afterwards all of them end, and no two ranks have asked for different things."""
    made: list[ThreadWorld] = []

    def make(size: int, *, delay: Callable[[int, int], float] = lambda rank, lane: 0.0, **knobs: Any) -> ThreadWorld:
        hub, settings = Hub(size, delay), Settings(**{"stall_warning_seconds": 0.0, **knobs})
        transports = [ThreadTransport(hub, rank) for rank in range(size)]
        metrics = [Metrics() for _ in range(size)]
        engines = [Engine(t, settings, m, LastCollective(None, t.topology.rank)) for t, m in zip(transports, metrics, strict=True)]
        made.append(ThreadWorld(hub, transports, engines, metrics, settings))
        return made[-1]

    yield make
    for world in made:
        assert None not in world.stop(), "an engine does not stop"
        assert not world.hub.all_faults(), world.hub.all_faults()
