"""Process sets between ranks that are threads: they come and go by agreement, and whoever leaves is named to those who wait for it."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from engines import reduction, result_of, until

from hvdlite.errors import EngineError, MismatchError, PeerLeftError, ProcessSetError
from hvdlite.operations import Sum
from hvdlite.orders import AddSet, RemoveSet, UseSlots
from hvdlite.submissions import Handle


class Sets:
    """A world of threads, and orders to all its ranks."""

    def __init__(self, world):
        self.world, self.engines = world, world.engines
        self._count = 0

    def order(self, make: Callable[[str, int], object], ranks: Sequence[int] | None = None) -> list[Handle]:
        self._count += 1
        return [self.engines[r].submit(make(f"order.{self._count}", r)) for r in ranks or range(len(self.engines))]

    def add(self, *ranks: int) -> int:
        (set_id,) = {result_of(h) for h in self.order(lambda name, r: AddSet(name, ranks, self.engines[r].sets))}
        return set_id

    def removing(self, set_id: int) -> list[Handle]:
        return self.order(lambda name, r: RemoveSet(name, set_id, self.engines[r].sets))

    def submit(self, set_id: int, rank: int, name: str, array: np.ndarray) -> Handle:
        channel = self.engines[rank].sets.channel(set_id)
        return channel.submit(reduction(name, array, channel.topology.rank, channel.topology.size, Sum))


@pytest.fixture
def sets(thread_world) -> Callable[..., Sets]:
    return lambda size, **knobs: Sets(thread_world(size, **knobs))


def test_numbers_are_the_smallest_that_are_free_and_the_same_everywhere(sets):
    s = sets(4)
    assert [s.add(0, 1), s.add(2, 3), s.add(0)] == [1, 2, 3]
    assert all(result_of(h) for h in s.removing(2))
    assert not any(result_of(h) for h in s.removing(2))
    assert not any(result_of(h) for h in s.removing(0))
    assert s.add(1, 3) == 2
    assert {str(e.sets.ranks()) for e in s.engines} == {"{0: [0, 1, 2, 3], 1: [0, 1], 3: [0], 2: [1, 3]}"}


def test_rooms_are_reserved_by_members_only_and_given_back_after_all_have_left(sets):
    s = sets(3)
    set_id = s.add(0, 2)
    assert [t.reserved for t in s.world.transports] == [1, 0, 1]
    assert [t.released for t in s.world.transports] == [[], [], []]
    transports = [s.engines[r].sets.channel(set_id).transport for r in (0, 2)]
    assert all(result_of(h) for h in s.removing(set_id))
    assert [t.released for t in s.world.transports] == [[64], [], [64]]
    assert [t.closed for t in transports] == [1, 1]
    s.add(1)  # nobody to share memory with
    assert [t.reserved for t in s.world.transports] == [1, 0, 1]


def test_a_set_of_one_answers_at_once(sets):
    s = sets(2)
    set_id, array = s.add(1), np.arange(3.0)
    handle = s.submit(set_id, 1, "alone", array)
    assert handle.done()
    assert array.tolist() == [0, 1, 2]
    with pytest.raises(ProcessSetError, match=r"rank 0 is not a member of the provided process set 1, which has the ranks \[1\]"):
        s.submit(set_id, 0, "alone", array)
    with pytest.raises(ProcessSetError, match="process set 9 does not exist"):
        s.submit(9, 0, "alone", array)


def test_a_set_goes_on_while_others_keep_all_waiting(sets):
    """Rank 2 never submits what the world waits for; the set of the other two is none the worse."""
    s = sets(3)
    set_id = s.add(0, 1)
    waiting = [s.engines[r].submit(reduction("slow", np.ones(2), r, 3)) for r in (0, 1)]
    for i in range(10):
        arrays = [np.full(4, 1.0 + r) for r in (0, 1)]
        for handle in [s.submit(set_id, r, f"x{i}", arrays[r]) for r in (0, 1)]:
            result_of(handle)
        assert all((a == 3).all() for a in arrays)
    assert not any(h.done() for h in waiting)
    waiting.append(s.engines[2].submit(reduction("slow", np.ones(2), 2, 3)))
    for handle in waiting:
        result_of(handle)


def test_ranks_that_ask_for_other_orders_are_all_told(sets):
    s = sets(3)
    handles = s.order(lambda name, r: AddSet(name, (0, 1) if r else (0, 2), s.engines[r].sets))
    for handle in handles:
        with pytest.raises(MismatchError, match=r"has the ranks \(0, 2\) on rank 0 but \(0, 1\) on rank 1"):
            result_of(handle)
    assert s.add(0, 1) == 1


def test_who_waits_in_a_set_hears_which_rank_has_left(sets):
    s = sets(3)
    set_id = s.add(1, 2)
    handle = s.submit(set_id, 1, "lonely", np.ones(2))
    stopping = threading.Thread(target=s.engines[2].stop, daemon=True)
    stopping.start()
    with pytest.raises(PeerLeftError, match="rank 2 has finished while rank 1 waits for 'lonely' in process set 1"):
        result_of(handle)
    with pytest.raises(PeerLeftError, match="rank 2 has finished"):
        s.submit(set_id, 1, "another", np.ones(2))
    s.world.stop()
    stopping.join(20)
    assert not stopping.is_alive()


def test_who_hears_that_a_rank_has_left_the_job_lets_it_go_from_every_set(sets):
    """It would wait in shutdown() for the others of its sets, who have no reason to look there."""
    s = sets(3)
    s.add(0, 1)
    s.add(0, 2)
    stopping = threading.Thread(target=s.engines[0].stop, daemon=True)
    stopping.start()
    until(lambda: s.engines[0].channel._refusal is not None)
    waiting = {r: s.engines[r].submit(reduction("x", np.ones(1), r, 3)) for r in (1, 2)}
    for rank, handle in waiting.items():
        with pytest.raises(PeerLeftError, match=f"rank 0 has finished while rank {rank} waits for 'x'"):
            result_of(handle)
    stopping.join(20)
    assert not stopping.is_alive()
    with pytest.raises(PeerLeftError, match="rank 0 has finished"):
        s.submit(2, 2, "y", np.ones(1))


@pytest.mark.parametrize("seed", range(4))
def test_what_all_have_submitted_is_done_before_a_set_goes_and_the_rest_fails(sets, seed):
    rng = np.random.default_rng(seed)
    delays = rng.random((4, 6)) * 0.003
    s = sets(4, delay=lambda rank, lane: delays[rank][lane])
    set_id = s.add(0, 1, 3)
    names = [f"x{i}" for i in range(6)]
    arrays = {(r, n): np.full(3, 1.0 + r) for r in (0, 1, 3) for n in names}
    shared = [s.submit(set_id, r, n, arrays[r, n]) for r in (0, 1, 3) for n in map(str, rng.permutation(names))]
    lonely = [s.submit(set_id, r, "lonely", np.ones(1)) for r in (0, 3)]
    removing = s.removing(set_id)
    for handle in shared:
        result_of(handle)
    assert all((a == 7).all() for a in arrays.values())
    for handle in lonely:
        with pytest.raises(EngineError, match="process set 1 was removed before this collective was complete; wait for its handle first"):
            result_of(handle)
    assert all(result_of(h) for h in removing)
    with pytest.raises(ProcessSetError, match="process set 1 does not exist"):
        s.submit(set_id, 0, "late", np.ones(1))


def test_a_stall_in_a_set_names_it_and_asks_its_ranks_only(sets, caplog):
    s = sets(3, stall_warning_seconds=0.1)
    set_id = s.add(1, 2)
    handle = s.submit(set_id, 2, "late", np.ones(1))
    until(lambda: caplog.text)
    result_of(s.submit(set_id, 1, "late", np.ones(1)))
    result_of(handle)
    assert "rank 2 has waited" in caplog.text
    assert "for 'late' in process set 1" in caplog.text
    assert "rank 1 (host" in caplog.text
    assert "rank 0" not in caplog.text


def test_a_set_leaves_the_number_of_slots_in_the_metrics_alone(sets):
    s = sets(2, slots=4)
    for handle in [s.engines[r].submit(UseSlots("mine", 2)) for r in range(2)]:
        result_of(handle)
    s.add(0)
    assert [m.slots for m in s.world.metrics] == [2, 2]


def test_a_set_that_comes_while_its_rank_stops_is_left_as_well(sets):
    s = sets(2)
    handles = s.order(lambda name, r: AddSet(name, (0,), s.engines[r].sets))
    assert None not in s.world.stop()  # whether together or one after the other
    for handle in handles:
        assert handle.done()
