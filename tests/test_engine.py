"""The engine: alone, and between ranks that are threads over a transport that delays and reorders."""

import random
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from engines import TwoRounds, reduction, result_of, until

from hvdlite import compression
from hvdlite.compression import Finish, PieceBytes, Start
from hvdlite.engine import Engine
from hvdlite.errors import EngineError
from hvdlite.negotiation import Vote
from hvdlite.operations import AllGatherOperation, BarrierOperation, BroadcastOperation
from hvdlite.settings import Settings
from hvdlite.submissions import Handle
from hvdlite.telemetry.last import LastCollective
from hvdlite.telemetry.metrics import Metrics
from hvdlite.transports.local import LocalTransport


def alone() -> Engine:
    return Engine(LocalTransport(), Settings(), Metrics(), LastCollective(None, 0))


def test_a_world_of_one_answers_at_once_without_a_thread():
    before = threading.active_count()
    engine, array = alone(), np.arange(6.0)
    handle = engine.submit(reduction("x", array, 0, 1, prescale=2.0))
    assert handle.done()
    handle.wait()
    assert (array == 2 * np.arange(6.0)).all()
    assert threading.active_count() == before
    assert engine.stop()
    with pytest.raises(EngineError, match="has been shut down"):
        engine.submit(reduction("x", array, 0, 1))


@pytest.mark.parametrize("spec", compression.names())
def test_a_world_of_one_runs_every_compressor(spec):
    rng = np.random.default_rng(0)
    array = rng.standard_normal((64, 64)).astype(np.float32)
    given = array.copy()
    alone().submit(reduction("x", array, 0, 1, compressor=compression.load(spec))).wait()
    assert np.isfinite(array).all()
    assert np.dot(array.ravel(), given.ravel()) > 0


@dataclass
class TakesTime:
    """Encodes for 10 ms, sums up what came and encodes it again for 20, decodes for 40; in pieces that are under way at once if asked."""

    in_pieces: bool
    name: str = "x"
    kind: ClassVar[str] = "allreduce"
    nbytes: int = 8
    signature: bytes = b""

    def vote(self) -> Vote:
        return Vote.ALL

    def program(self, vote: Vote):
        yield PieceBytes()
        time.sleep(0.01)
        request = compression.AllReduce(np.ones(1))
        if self.in_pieces:
            token = yield Start(request)
            time.sleep(0.02)
            yield Finish(token)
            time.sleep(0.015)
            yield Finish(token)
            time.sleep(0.025)
        else:
            yield request
            time.sleep(0.02)
            yield request
            time.sleep(0.04)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_precedes_a_message_is_encoding_and_what_follows_the_last_is_decoding(in_pieces):
    metrics = Metrics()
    engine = Engine(LocalTransport(), Settings(), metrics, LastCollective(None, 0))
    engine.submit(TakesTime(in_pieces)).wait()
    assert metrics.encode_ms >= 30
    assert metrics.decode_ms >= 40
    assert metrics.encode_ms + metrics.decode_ms <= metrics.codec_ms
    assert metrics.exposed_encode_ms == metrics.exposed_decode_ms == 0, "nobody waited"


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_results_reach_their_handles_whatever_is_submitted_and_completed_first(thread_world, size, seed):
    rng = random.Random(seed)
    delays = [[rng.choice([0.0, 0.0, 0.002, 0.01]) for _ in range(5)] for _ in range(size)]
    world = thread_world(size, delay=lambda rank, lane: delays[rank][lane] * rng.random(), fusion_threshold_bytes=1024)
    arrays = [{i: np.full(1 + i % 7, 100 * i + rank, np.float64 if i % 3 else np.float32) for i in range(60)} for rank in range(size)]
    specs = {i: ["none", "fp16", "topk:density=1", "powersgd:rank=1", "int8"][i % 5] for i in range(60)}
    handles: list[dict[int, Handle]] = [{} for _ in range(size)]

    def submit(rank: int) -> None:
        for i in random.Random(100 * seed + rank).sample(range(60), 60):
            compressor = compression.load(specs[i]) if i % 4 == 0 else None
            handles[rank][i] = world.engines[rank].submit(reduction(f"t{i}", arrays[rank][i], rank, size, compressor=compressor))

    threads = [threading.Thread(target=submit, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(size):
        for i, handle in handles[rank].items():
            result_of(handle)
            assert handle.name == f"t{i}"
            np.testing.assert_allclose(arrays[rank][i], 100 * i + (size - 1) / 2, rtol=2e-2 if i % 4 == 0 else 1e-6)
            assert arrays[rank][i].tobytes() == arrays[0][i].tobytes()


def test_several_exchanges_are_in_flight_at_once(thread_world):
    world = thread_world(2, delay=lambda rank, lane: 0.0 if lane < 0 else 0.3, fusion_threshold_bytes=0, slots=4)
    arrays = [[np.ones(4) for _ in range(4)] for _ in range(2)]
    start = time.monotonic()
    handles = [world.engines[r].submit(reduction(f"t{i}", arrays[r][i], r, 2)) for r in range(2) for i in range(4)]
    for handle in handles:
        result_of(handle)
    assert time.monotonic() - start < 4 * 0.3
    assert {lane for lane in world.transports[0].lanes if lane >= 0} == {0, 1, 2, 3}


def test_a_slow_lane_does_not_hold_up_the_others(thread_world):
    world = thread_world(2, delay=lambda rank, lane: 0.5 if lane == rank else 0.0, fusion_threshold_bytes=0, slots=3)
    done: list[list[str]] = [[], []]
    handles = [[world.engines[r].submit(reduction(f"t{i}", np.ones(2), r, 2)) for i in range(3)] for r in range(2)]
    until(lambda: all(h[2].done() for h in handles))
    for rank in range(2):
        done[rank] = [h.name for h in handles[rank] if h.done()]
    assert done == [["t1", "t2"], ["t0", "t2"]]  # each rank finished another one first


def test_exchanges_of_two_rounds_do_not_mix(thread_world):
    rng = random.Random(3)
    world = thread_world(3, delay=lambda rank, lane: rng.random() * 0.004, slots=3)
    arrays = [[np.full(10 + i, i + r, np.float32) for i in range(12)] for r in range(3)]
    handles = [world.engines[r].submit(reduction(f"t{i}", arrays[r][i], r, 3, compressor=TwoRounds())) for r in range(3) for i in range(12)]
    for handle in handles:
        result_of(handle)
    assert all((arrays[r][i] == i + 1).all() for r in range(3) for i in range(12))


def test_an_idle_engine_leaves_the_transport_alone(thread_world):
    world = thread_world(2)
    for _ in range(2):
        handles = [world.engines[r].submit(reduction("x", np.ones(3), r, 2)) for r in range(2)]
        [result_of(h) for h in handles]
    time.sleep(0.1)
    before = [t.calls for t in world.transports]
    time.sleep(2.2)
    assert all(after.calls - b <= 6 for after, b in zip(world.transports, before, strict=True))  # a look for notes every half second


def test_a_waiting_engine_is_patient(thread_world):
    world = thread_world(2)
    waiting = world.engines[0].submit(reduction("x", np.ones(3), 0, 2))
    time.sleep(0.2)
    start, cpu = time.monotonic(), time.process_time()
    time.sleep(2)
    assert (time.process_time() - cpu) / (time.monotonic() - start) < 0.15
    result_of(world.engines[1].submit(reduction("x", np.ones(3), 1, 2)))
    result_of(waiting)


def test_gathers_broadcasts_and_barriers(thread_world):
    world = thread_world(3, delay=lambda rank, lane: 0.001 * rank)
    gathered = [world.engines[r].submit(AllGatherOperation("g", np.full((r, 2), r, np.int16), 3)) for r in range(3)]
    arrays = [[np.full(2, r), np.array(float(r))] for r in range(3)]
    spread = [world.engines[r].submit(BroadcastOperation("b", arrays[r], 2)) for r in range(3)]
    barriers = [world.engines[r].submit(BarrierOperation("barrier")) for r in range(3)]
    for rank in range(3):
        whole, lengths = result_of(gathered[rank])
        assert lengths == [0, 1, 2]
        assert whole.tolist() == [[1, 1], [2, 2], [2, 2]]
        result_of(spread[rank])
        result_of(barriers[rank])
        assert (arrays[rank][0] == 2).all()
        assert arrays[rank][1] == 2.0
    assert np.array_equal(result_of(gathered[0])[0], result_of(gathered[2])[0])
