"""How many exchanges are in flight: as set, and changed while anything is."""

import random
import threading

import numpy as np
import pytest
from engines import LIMIT_S, TwoRounds, reduction, result_of, until

from hvdlite.orders import UseSlots


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
    until(lambda: all(not e.channel._in_flight for e in world.engines))
    for rank in range(size):
        for name, array in arrays[rank].items():
            np.testing.assert_array_equal(array, np.float32(10 * int(name[2:]) + (size - 1) / 2))
