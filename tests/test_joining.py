"""Ranks that join, over a transport that delays and reorders: the others go on with every operation, and nothing is left behind."""

import random
import threading
import time

import numpy as np
import pytest
from engines import reduction, result_of, until

from hvdlite import compression
from hvdlite.errors import MismatchError, PeerLeftError, SettingError, UnsupportedError
from hvdlite.operations import AllGatherOperation, AllToAllOperation, Average, BarrierOperation, BroadcastOperation, ReduceScatterOperation, Sum
from hvdlite.orders import UseSlots

SPECS = ["none", "fp16", "topk:density=1", "powersgd:rank=1", "int8"]


def on_all(size, run):
    """``run(rank)`` in a thread a rank; what each returned."""
    found, errors = [None] * size, []

    def work(rank):
        try:
            found[rank] = run(rank)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return found


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_every_rank_stops_when_it_likes(thread_world, size, seed):
    """Each has another number of operations in flight, in another order, fused or not, compressed or not; three times over the same names."""
    delays = random.Random(seed)
    world = thread_world(size, delay=lambda rank, lane: delays.choice([0.0, 0.0, 0.001, 0.004]), fusion_threshold_bytes=512)

    def run(rank):
        rng = random.Random(100 * seed + rank)
        for epoch in range(3):
            counts = [random.Random(f"{seed} {epoch} {r}").randint(0, 12) for r in range(size)]
            arrays = {i: np.full(1 + 7 * (i % 5), 10.0 * i + rank, np.float32) for i in range(counts[rank])}
            handles = {}
            for i in rng.sample(sorted(arrays), len(arrays)):
                compressor = compression.load(SPECS[i % 5]) if i % 2 else None
                handles[i] = world.engines[rank].submit(reduction(f"t{i}", arrays[i], rank, size, compressor=compressor))
            for i, handle in handles.items():
                result_of(handle)
                present = [r for r in range(size) if i < counts[r]]
                # a rank that has more to do may be away by then only if it has joined: then it had no such operation
                assert handle.num_ranks == len(present)
                np.testing.assert_allclose(arrays[i], 10.0 * i + np.mean(present), rtol=2e-2)
            last = result_of(world.engines[rank].channel.join())
            assert counts[last] >= 0
        return last

    assert len(set(on_all(size, run))) == 1
    assert {e.channel.num_joins for e in world.engines} == {3}
    assert len({(e.channel._next_lane, e.channel._num_dealt) for e in world.engines}) == 1


def test_other_operations_among_those_that_go_on(thread_world):
    size, one = 4, 1
    world = thread_world(size)

    def run(rank):
        channel = world.engines[rank].channel
        if rank != one:
            others = [0, 2, 3]
            whole, lengths = result_of(channel.submit(AllGatherOperation("g", np.full((rank + 1, 2), rank), size)))
            assert lengths == [1, 0, 3, 4]
            assert whole[:, 0].tolist() == [0, 2, 2, 2, 3, 3, 3, 3]
            rows, counts = result_of(channel.submit(AllToAllOperation("a", np.arange(4) + 10 * rank, [1, 1, 1, 1], size, rank)))
            assert (rows.tolist(), counts) == ([10 * r + rank for r in others], [1, 0, 1, 1])
            mine = result_of(channel.submit(ReduceScatterOperation("s", np.arange(8.0), Average, size, rank)))
            assert mine.tolist() == [2 * rank, 2 * rank + 1]
            copy = np.full(3, rank)
            result_of(channel.submit(BroadcastOperation("b", [copy], 3)))
            assert copy.tolist() == [3, 3, 3]
            with pytest.raises(MismatchError, match="'b1' is broadcast from rank 1, which has joined"):
                result_of(channel.submit(BroadcastOperation("b1", [copy], one)))
            result_of(channel.submit(BarrierOperation("barrier")))
            assert not result_of(channel.submit(UseSlots("slots", 2)))
        return result_of(channel.join())

    assert set(on_all(size, run)) <= {0, 2, 3}
    assert len({e.channel._slots_in_use for e in world.engines}) == 1
    assert on_all(size, lambda rank: result_of(world.engines[rank].submit(UseSlots("slots", 2)))) == [True] * size


def test_as_horovod(thread_world):
    world = thread_world(3, join="horovod")

    def run(rank):
        channel = world.engines[rank].channel
        if rank:
            for dtype in (np.float32, np.int64):
                for spec in (None, "fp16"):
                    array = np.full(3, 9, dtype)
                    result_of(channel.submit(reduction(f"{array.dtype}{spec}", array, rank, 3, compressor=spec and compression.load(spec))))
                    assert array.tolist() == [6, 6, 6]
            total = np.ones(3)
            result_of(channel.submit(reduction("sum", total, rank, 3, op=Sum)))
            assert total.tolist() == [2, 2, 2]
            with pytest.raises(UnsupportedError, match="'g': allgather while rank 0 has joined is not supported by Horovod"):
                result_of(channel.submit(AllGatherOperation("g", np.ones(2), 3)))
            result_of(channel.submit(BarrierOperation("barrier")))
        return result_of(channel.join())

    on_all(3, run)


def test_a_rank_that_leaves_ends_the_wait_of_one_that_has_joined(thread_world):
    world = thread_world(2)
    handle = world.engines[0].channel.join()
    time.sleep(0.05)
    world.engines[1].channel.refuse(SettingError("gone"))
    world.engines[1].channel.leave()
    with pytest.raises(PeerLeftError, match="rank 1 has finished while rank 0 goes on"):
        result_of(handle)


def test_joining_twice_and_after_joining(thread_world):
    world = thread_world(2)
    channel = world.engines[0].channel
    handle = channel.join()
    with pytest.raises(SettingError, match=r"join\(\) on rank 0, which has called hvd\.join\(\)"):
        channel.join()
    with pytest.raises(SettingError, match="'x' on rank 0, which has called"):
        channel.submit(reduction("x", np.ones(2), 0, 2))
    assert not handle.done()
    assert result_of(world.engines[1].channel.join()) == result_of(handle)


def test_who_has_joined_keeps_nobody_waiting(thread_world, caplog):
    """Rank 0 has joined; rank 2 is late, and is the one that is named."""
    world = thread_world(3, stall_warning_seconds=0.3)
    joined = [world.engines[0].channel.join()]
    handles = [world.engines[1].submit(reduction("x", np.ones(2), 1, 3))]
    until(lambda: "has waited" in caplog.text)
    assert "rank 2 (" in caplog.text
    assert "rank 0 (" not in caplog.text
    handles.append(world.engines[2].submit(reduction("x", np.ones(2), 2, 3)))
    assert [result_of(h) for h in handles] == [frozenset()] * 2
    joined += [world.engines[r].channel.join() for r in (1, 2)]
    assert len({result_of(h) for h in joined}) == 1


def test_a_world_of_one_is_always_the_last(thread_world):
    world = thread_world(1)
    assert result_of(world.engines[0].channel.join()) == 0


def test_what_all_had_agreed_on_ends_as_it_began(thread_world):
    """On rank 1 answers are late: there an operation of all three is under way when the two that go on have agreed on the next."""
    world = thread_world(3, delay=lambda rank, lane: 0.3 if rank == 1 and lane >= 0 else 0.0, fusion_threshold_bytes=0, slots=2)

    def run(rank):
        channel = world.engines[rank].channel
        first, second = np.full(3, rank + 1.0), np.full(3, rank + 1.0)
        handles = [channel.submit(reduction("all", first, rank, 3, op=Sum))]
        if rank == 0:
            result_of(handles[0])
            return result_of(channel.join())
        handles.append(channel.submit(reduction("two", second, rank, 3, op=Sum)))
        until(lambda: channel._attendance.has_changed or handles[1].done())
        for handle in handles:
            result_of(handle)
        assert [h.num_ranks for h in handles] == [3, 2]
        assert (first.tolist(), second.tolist()) == ([6, 6, 6], [5, 5, 5])
        return result_of(channel.join())

    on_all(3, run)
