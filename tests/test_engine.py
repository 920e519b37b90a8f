"""The engine: alone, and between ranks that are threads over a transport that delays and reorders."""

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from hvdlite import compression
from hvdlite.engine import Engine, Handle, UseSlots
from hvdlite.errors import DuplicateNameError, EngineError, HorovodInternalError, MismatchError, PeerLeftError, StalledError
from hvdlite.operations import AllGatherOperation, AllReduceOperation, Average, BarrierOperation, BroadcastOperation, Sum
from hvdlite.settings import Settings
from hvdlite.telemetry.last import LastCollective
from hvdlite.telemetry.metrics import Metrics
from hvdlite.transports.local import LocalTransport

LIMIT_S = 30


def result_of(handle: Handle):
    """Its result; a test fails instead of hanging."""
    assert handle._event.wait(LIMIT_S), f"{handle.name} hangs"
    return handle.wait()


def error_of(handle: Handle) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        result_of(handle)
    return caught.value


def until(condition) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def reduction(name: str, array, rank: int, size: int, op=Average, **more) -> AllReduceOperation:
    return AllReduceOperation(name, [array], op, size, rank, **more)


def alone() -> Engine:
    return Engine(LocalTransport(), Settings(), Metrics(), LastCollective(None, 0))


# --- alone ---


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


# --- several ranks ---


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


def test_exchanges_of_two_rounds_do_not_mix(thread_world):
    rng = random.Random(3)
    world = thread_world(3, delay=lambda rank, lane: rng.random() * 0.004, slots=3)
    arrays = [[np.full(10 + i, i + r, np.float32) for i in range(12)] for r in range(3)]
    handles = [world.engines[r].submit(reduction(f"t{i}", arrays[r][i], r, 3, compressor=TwoRounds())) for r in range(3) for i in range(12)]
    for handle in handles:
        result_of(handle)
    assert all((arrays[r][i] == i + 1).all() for r in range(3) for i in range(12))


# --- slots in use ---


def lanes_of(world, rank: int) -> list[int]:
    return [lane for lane in world.transports[rank].lanes if lane >= 0]


def test_so_many_slots_are_used_as_the_setting_says(thread_world):
    world = thread_world(2, fusion_threshold_bytes=0, slots=4, slots_in_use=2)
    for handle in [world.engines[r].submit(reduction(f"t{i}", np.ones(2), r, 2)) for r in range(2) for i in range(8)]:
        result_of(handle)
    assert sorted(set(lanes_of(world, 0))) == [0, 1]
    assert world.metrics[0].slots == 2


def test_slots_change_where_all_ranks_agreed_on_it(thread_world):
    world = thread_world(2, fusion_threshold_bytes=0, slots=4)
    for number, slots in enumerate((2, 1, 4)):
        assert all(result_of(h) for h in [world.engines[r].submit(UseSlots("a", slots)) for r in range(2)])
        before = len(lanes_of(world, 0))
        for handle in [world.engines[r].submit(reduction(f"t{number}.{i}", np.ones(2), r, 2)) for r in range(2) for i in range(8)]:
            result_of(handle)
        assert sorted(set(lanes_of(world, 0)[before:])) == list(range(slots))
        assert world.metrics[1].slots == slots


def test_who_asked_first_chooses_the_slots_and_all_ranks_know_who(thread_world):
    world = thread_world(3, slots=4)
    asked = [[world.engines[r].submit(UseSlots(name, slots)) for name, slots in ([("a", 2), ("b", 3)] if r else [("b", 3), ("a", 2)])] for r in range(3)]
    granted = [{h.name for h in handles if result_of(h)} for handles in asked]
    assert granted[0] == granted[1] == granted[2]
    assert len(granted[0]) == 1
    chosen = 2 if granted[0] == {"a"} else 3
    assert [m.slots for m in world.metrics] == [chosen] * 3
    name = granted[0].pop()
    assert all(result_of(h) for h in [world.engines[r].submit(UseSlots(name, 1)) for r in range(3)])
    assert not any(result_of(h) for h in [world.engines[r].submit(UseSlots("ab".replace(name, ""), 4)) for r in range(3)])
    assert [m.slots for m in world.metrics] == [1] * 3


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_slots_may_change_while_anything_is_in_flight(thread_world, size, seed):
    """Several users of an engine submit in another order on each rank, one changes the slots between: nothing mixes up."""
    rng = random.Random(seed)
    world = thread_world(size, delay=lambda rank, lane: rng.random() * 0.003, fusion_threshold_bytes=200, slots=4)
    arrays = [{f"{user}.{i}": np.full(3 + i, 10 * i + rank, np.float32) for user in "abc" for i in range(12)} for rank in range(size)]

    def use(rank: int, user: str) -> None:
        for i in range(12):
            compressor = TwoRounds() if i % 3 == 0 else None
            handle = world.engines[rank].submit(reduction(f"{user}.{i}", arrays[rank][f"{user}.{i}"], rank, size, compressor=compressor))
            if user == "a":
                handle.wait()
                assert world.engines[rank].submit(UseSlots("slots", 1 + (i + seed) % 4)).wait()
            elif i % 4 == 3:
                handle.wait()

    threads = [threading.Thread(target=use, args=(rank, user)) for rank in range(size) for user in random.Random(seed).sample("abc", 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    until(lambda: all(not e._in_flight for e in world.engines))
    for rank in range(size):
        for name, array in arrays[rank].items():
            np.testing.assert_array_equal(array, np.float32(10 * int(name[2:]) + (size - 1) / 2))


# --- fusion ---


class Held:
    """Keeps an engine from taking what is submitted until all of it is."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def __enter__(self) -> None:
        self._take, self._engine._take = self._engine._take, lambda: False  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._engine._take = self._take  # type: ignore[method-assign]
        self._engine._wake.set()


@pytest.mark.parametrize(("threshold", "expected"), [(0, 8), (400, 8), (800, 4), (1600, 2), (1 << 20, 1)])
def test_fusion_respects_the_threshold(thread_world, threshold, expected):
    world = thread_world(2, fusion_threshold_bytes=threshold)
    with Held(world.engines[0]), Held(world.engines[1]):
        handles = [world.engines[r].submit(reduction(f"t{i}", np.ones(50), r, 2)) for r in range(2) for i in range(8)]
    for handle in handles:
        result_of(handle)
    assert [m.exchanges for m in world.metrics] == [expected] * 2


@pytest.mark.parametrize(
    ("differing", "expected"),
    [({}, 1), ({"op": Sum}, 3), ({"prescale": 2.0}, 3), ({"postscale": 0.5}, 3), ({"compressor": compression.load("fp16")}, 3)],
)
def test_only_alike_reductions_are_fused(thread_world, differing, expected):
    world = thread_world(2)
    results: list[list[np.ndarray]] = [[], []]

    def submit(rank):
        results[rank] = [np.full(3, 1.0 + i, np.float32) for i in range(3)]
        for i, array in enumerate(results[rank]):
            yield world.engines[rank].submit(reduction(f"t{i}", array, rank, 2, **({"op": Average} | (differing if i == 1 else {}))))

    for _ in range(2):
        before = world.metrics[0].exchanges
        with Held(world.engines[0]), Held(world.engines[1]):
            handles = [*submit(0), *submit(1)]
        for handle in handles:
            result_of(handle)
    assert world.metrics[0].exchanges - before == expected
    middle = 2.0 * 2 if differing.get("op") is Sum or "prescale" in differing else 1.0 if "postscale" in differing else 2.0
    assert [a[0] for a in results[0]] == [1.0, middle, 3.0]


def test_mixed_dtypes_are_fused_into_one_exchange(thread_world):
    world = thread_world(2)
    arrays = [[np.full((2, 2), r + i).astype(d) for i, d in enumerate(["float32", "float64", "int32", "float16", "float32"])] for r in range(2)]
    with Held(world.engines[0]), Held(world.engines[1]):
        handles = [world.engines[r].submit(reduction(f"t{i}", a, r, 2, Sum)) for r in range(2) for i, a in enumerate(arrays[r])]
    for handle in handles:
        result_of(handle)
    assert world.metrics[0].exchanges == 1
    assert all((a == 2 * i + 1).all() for r in range(2) for i, a in enumerate(arrays[r]))


# --- faults ---


def test_a_name_in_flight_is_refused_here_only(thread_world):
    world = thread_world(2)
    first, second = np.ones(3), np.ones(3)
    handle = world.engines[0].submit(reduction("x", first, 0, 2))
    with pytest.raises(DuplicateNameError, match="'x' is still being processed on rank 0"):
        world.engines[0].submit(reduction("x", second, 0, 2))
    other = world.engines[1].submit(reduction("x", 3 * np.ones(3), 1, 2))
    result_of(handle), result_of(other)
    assert (first == 2).all()
    assert (second == 1).all()
    handles = [world.engines[r].submit(reduction("x", np.ones(3), r, 2)) for r in range(2)]
    [result_of(h) for h in handles]


def test_a_mismatch_fails_the_handles_of_all_ranks_and_nothing_else(thread_world):
    world = thread_world(3)
    bad = [world.engines[r].submit(reduction("x", np.ones(3 + (r == 2)), r, 3)) for r in range(3)]
    good = [world.engines[r].submit(reduction("y", np.ones(3), r, 3)) for r in range(3)]
    errors = {str(error_of(h)) for h in bad}
    assert len(errors) == 1
    assert "'x' has shape (3,) on rank 0 but (4,) on rank 2" in errors.pop()
    assert all(type(error_of(h)) is MismatchError for h in bad)
    [result_of(h) for h in good]
    again = [world.engines[r].submit(reduction("x", np.ones(3), r, 3)) for r in range(3)]
    [result_of(h) for h in again]


@dataclass
class Broken(TwoRounds):
    """Fails between its requests."""

    def exchange(self, bucket) -> Iterator:
        yield compression.AllReduce(bucket.flat.copy())
        raise ZeroDivisionError("no such column")


def test_an_exception_in_a_compressor_fails_every_handle_and_names_it(thread_world):
    world = thread_world(2)
    waiting = [world.engines[r].submit(reduction(f"waits{r}", np.ones(2), r, 2)) for r in range(2)]  # never agreed: other names
    handles = [world.engines[r].submit(reduction("x", np.ones((2, 2), np.float32), r, 2, compressor=Broken())) for r in range(2)]
    for handle in (*handles, *waiting):
        error = error_of(handle)
        assert type(error) is EngineError
        assert "ZeroDivisionError: no such column" in str(error)
        assert isinstance(error.__cause__, ZeroDivisionError)
    for rank in range(2):
        with pytest.raises(EngineError, match="no such column"):
            world.engines[rank].submit(reduction("y", np.ones(2), rank, 2))
        assert world.engines[rank].is_broken
    assert world.stop() == [False, False]


def test_stop_fails_what_was_never_agreed_and_ends_all_threads(thread_world):
    world = thread_world(2)
    handle = world.engines[0].submit(reduction("x", np.ones(2), 0, 2))
    together = world.stop()
    assert together[0] == together[1]
    said = "shutdown\\(\\) was called before this collective was complete|rank 1 has finished while rank 0 waits for 'x'"
    assert re.search(said, str(error_of(handle)))
    assert not any(e._thread.is_alive() for e in world.engines)
    with pytest.raises(EngineError, match="has been shut down"):
        world.engines[1].submit(reduction("x", np.ones(2), 0, 2))
    assert world.stop() == together


def test_ranks_that_have_nothing_pending_leave_together(thread_world):
    world = thread_world(4)
    for handle in [world.engines[r].submit(reduction("x", np.ones(2), r, 4)) for r in range(4)]:
        result_of(handle)
    assert world.stop() == [True] * 4


@pytest.mark.parametrize("seed", range(6))
def test_stop_in_the_middle_leaves_no_handle_waiting(thread_world, seed):
    rng = random.Random(seed)
    world = thread_world(3, delay=lambda rank, lane: rng.random() * 0.003, slots=2)
    handles = [world.engines[r].submit(reduction(f"t{i}", np.ones(2), r, 3)) for i in range(10) for r in range(3)]
    time.sleep(rng.random() * 0.02)
    assert None not in world.stop()
    for handle in handles:
        with contextlib.suppress(HorovodInternalError):
            result_of(handle)
    assert not any(e.is_broken for e in world.engines)


def test_a_rank_that_stops_while_a_round_is_under_way_still_runs_what_that_round_agrees(thread_world):
    world = thread_world(2, delay=lambda rank, lane: 0.2)
    handles = [world.engines[r].submit(reduction("x", np.ones(2), r, 2)) for r in range(2)]
    until(lambda: all(t.lanes for t in world.transports))  # the round with x
    assert None not in world.stop()
    for handle in handles:
        result_of(handle)
    assert not any(e.is_broken for e in world.engines)


def test_a_peer_that_left_is_named_and_later_submissions_are_refused(thread_world):
    world = thread_world(3)
    stopping = threading.Thread(target=world.engines[1].stop, daemon=True)
    stopping.start()
    waiting = [world.engines[r].submit(reduction("x", np.ones(2), r, 3)) for r in (0, 2)]
    for rank, handle in zip((0, 2), waiting, strict=True):
        error = error_of(handle)
        assert type(error) is PeerLeftError
        assert f"rank 1 has finished while rank {rank} waits for 'x'" in str(error)
        with pytest.raises(PeerLeftError):
            world.engines[rank].submit(reduction("y", np.ones(2), rank, 3))
    stopping.join(LIMIT_S)
    assert not stopping.is_alive()


def test_what_is_submitted_as_a_peer_leaves_does_not_wait_forever(thread_world):
    world = thread_world(2, delay=lambda rank, lane: 0.05)
    stopping = threading.Thread(target=world.engines[1].stop, daemon=True)
    stopping.start()
    handles = []
    with pytest.raises(PeerLeftError):  # noqa: PT012 - some submission is the first to be refused
        for i in range(100_000):
            handles.append(world.engines[0].submit(BarrierOperation(f"b{i}")))
            time.sleep(0.0005)
    for handle in handles:
        assert type(error_of(handle)) is PeerLeftError


def test_what_was_accepted_just_before_a_peer_left_fails_like_the_rest(thread_world):
    world = thread_world(2)
    first = world.engines[0].submit(BarrierOperation("first"))
    until(lambda: world.engines[0]._negotiator.pending)
    with Held(world.engines[0]):
        late = world.engines[0].submit(BarrierOperation("late"))  # accepted, and not looked at until the peer is gone
        threading.Thread(target=world.engines[1].stop, daemon=True).start()
        assert type(error_of(first)) is PeerLeftError
    assert type(error_of(late)) is PeerLeftError


def test_ranks_that_wait_for_different_things_are_told(thread_world):
    world = thread_world(2, stall_shutdown_seconds=0.3)
    handles = [world.engines[r].submit(reduction(f"t{r}", np.ones(2), r, 2)) for r in range(2)]
    errors = [error_of(h) for h in handles]
    assert any(isinstance(e, StalledError) for e in errors)
    assert any("rank 1" in str(e) and "has not submitted 't0'; it waits for 't1'" in str(e) for e in errors)


# --- cost ---


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


# --- the other collectives through the engine ---


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
