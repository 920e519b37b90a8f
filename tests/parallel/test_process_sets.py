"""Process sets: what holds for all ranks holds for those of a set among themselves, and nobody outside is waited for."""

import random
import threading

import numpy as np
import pytest

import hvdlite as hvd

COUNTS = (3, 5000, 700_000)  # within a line, in staging or messages, in several pieces


def layouts(size: int) -> list[list[int]]:
    """Sets that overlap, of every size; together they need not have all ranks."""
    found = [[0], [size - 1], list(range(size - 1)), list(range(1, size)), [0, size - 1], list(range(0, size, 2)), list(range(1, size, 2))]
    return [ranks for i, ranks in enumerate(found) if ranks and len(ranks) < size and ranks not in found[:i]]


@pytest.fixture(scope="module")
def sets(_world):
    """All of them, registered on every rank in the same order."""
    made = [hvd.add_process_set(ranks) for ranks in layouts(hvd.size())]
    yield made
    assert all(hvd.remove_process_set(s) for s in made)
    assert hvd.get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}


@pytest.fixture
def mine(sets):
    return [s for s in sets if s.included()]


def test_every_rank_knows_every_set(sets, rank, size):
    known = hvd.get_process_set_ids_and_ranks()
    assert known == {0: list(range(size))} | {i + 1: ranks for i, ranks in enumerate(layouts(size))}
    for s in sets:
        assert known[s.process_set_id] == s.ranks
        assert (s.size(), s.included()) == (len(s.ranks), rank in s.ranks)
        if s.included():
            assert s.rank() == s.ranks.index(rank)
        else:
            with pytest.raises(hvd.ProcessSetError, match=f"rank {rank} is not a member of the provided process set {s.process_set_id}"):
                s.rank()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Max])
def test_reductions_are_over_the_ranks_of_the_set(mine, rank, op, count):
    for s in mine:
        everyone = np.stack([np.random.default_rng(r).integers(-9, 9, count).astype(np.float64) for r in s.ranks])
        expected = {hvd.Average: everyone.mean, hvd.Sum: everyone.sum, hvd.Max: everyone.max}[op](0)
        np.testing.assert_allclose(hvd.allreduce(everyone[s.rank()], op=op, process_set=s), expected, rtol=1e-12)
        parts = [np.array_split(row, len(s.ranks)) for row in everyone]  # numpy deals the rest to the first ones as well
        share = hvd.reducescatter(everyone[s.rank()], op=op, process_set=s)
        assert share.shape == parts[0][s.rank()].shape
        np.testing.assert_allclose(share, np.split(expected, np.cumsum([len(p) for p in parts[0]])[:-1])[s.rank()], rtol=1e-12)


@pytest.mark.parametrize("count", COUNTS)
def test_rows_are_those_of_the_set_in_its_order(mine, rank, count):
    for s in mine:
        whole = hvd.allgather(np.full((count + s.rank(), 1), rank, np.int32), process_set=s)
        assert whole.ravel().tolist() == [r for i, r in enumerate(s.ranks) for _ in range(count + i)]
        splits = [count // 50 + i for i in range(len(s.ranks))]
        rows, lengths = hvd.alltoall(np.full(sum(splits), rank), splits, process_set=s)
        assert lengths == [splits[s.rank()]] * len(s.ranks)
        assert rows.tolist() == [r for r in s.ranks for _ in range(splits[s.rank()])]
        for (first, second), r in zip(
            zip(*hvd.grouped_allgather([np.array([rank]), np.array([[2.0 * rank]])], process_set=s), strict=True), s.ranks, strict=True
        ):
            assert (int(first), float(second[0])) == (r, 2.0 * r)


@pytest.mark.parametrize("count", COUNTS)
def test_a_root_is_a_number_among_all_ranks(mine, rank, size, count):
    for s in mine:
        for root in s.ranks:
            assert set(hvd.broadcast(np.full(count, rank), root, process_set=s)) == {root}
            assert hvd.broadcast_object({"from": rank}, root, process_set=s) == {"from": root}
        outside = next(r for r in range(size) if r not in s.ranks)
        with pytest.raises(hvd.SettingError, match=rf"root_rank={outside} is not in process set {s.process_set_id}; one of its ranks"):
            hvd.broadcast(np.ones(1), outside, process_set=s)
        assert hvd.allgather_object(("of", rank), process_set=s) == [("of", r) for r in s.ranks]


def test_nobody_outside_is_waited_for(sets, rank):
    """Each set in turn runs to its end while ranks outside do nothing at all; had they been needed, this would hang."""
    for s in sets:
        if s.included():
            for i in range(20):
                assert hvd.allreduce(np.array([i + rank]), op=hvd.Sum, process_set=s).tolist() == [sum(i + r for r in s.ranks)]
            hvd.barrier(process_set=s)
    hvd.barrier()


@pytest.mark.parametrize("seed", range(3))
def test_one_name_may_be_in_flight_in_every_set_at_once(sets, mine, rank, size, seed):
    """Submitted in another order on every rank, from several threads."""
    results: dict[tuple[int, str], np.ndarray] = {}

    def run(s: hvd.ProcessSet, thread: int) -> None:
        rng = random.Random(100 * seed + 10 * rank + thread)
        names = [f"sets.{thread}.{i}" for i in range(12)]
        arrays = {name: np.full(rng.choice(COUNTS[:1]), 10.0 * i + rank) for i, name in enumerate(names)}
        handles = {name: hvd.allreduce_async([arrays[name]], name=name, op=hvd.Sum, process_set=s) for name in rng.sample(names, len(names))}
        for name in names:
            handles[name].wait()
            results[s.process_set_id, name] = arrays[name]

    everywhere = [*mine, hvd.global_process_set]
    threads = [threading.Thread(target=run, args=(s, thread), daemon=True) for s in everywhere for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for s in everywhere:
        for thread in range(2):
            for i in range(12):
                assert (results[s.process_set_id, f"sets.{thread}.{i}"] == sum(10.0 * i + r for r in s.ranks)).all()


def test_a_rank_outside_is_told_so_at_once(sets, rank):
    outside = [s for s in sets if not s.included()]
    for s in outside:
        calls = [
            lambda s=s: hvd.allreduce_async([np.ones(2)], process_set=s),
            lambda s=s: hvd.allgather_async(np.ones(2), process_set=s),
            lambda s=s: hvd.broadcast_async([np.ones(2)], 0, process_set=s),
            lambda s=s: hvd.alltoall_async(np.ones(2), process_set=s),
            lambda s=s: hvd.reducescatter_async(np.ones(2), process_set=s),
            lambda s=s: hvd.broadcast_object(1, process_set=s),
            lambda s=s: hvd.barrier(process_set=s),
        ]
        for call in calls:
            with pytest.raises(hvd.ProcessSetError, match=rf"rank {rank} is not a member of .* process set {s.process_set_id}, which has the ranks \["):
                call()
    with pytest.raises(hvd.ProcessSetError, match="a set that is registered is expected"):
        hvd.barrier(process_set=hvd.ProcessSet([rank]))


def test_a_mismatch_names_the_set_and_its_ranks_and_concerns_no_other(mine, rank):
    for s in mine:
        if len(s.ranks) > 1:
            is_last = rank == s.ranks[-1]
            with pytest.raises(hvd.MismatchError) as caught:
                hvd.allreduce(np.ones(4 if is_last else 3), name="sets.mismatch", process_set=s)
            said = f"'sets.mismatch' in process set {s.process_set_id} has shape (3,) on rank {s.ranks[0]} but (4,) on rank {s.ranks[-1]}; all ranks must agree"
            assert said in str(caught.value)
            assert hvd.allreduce(np.ones(3), name="sets.mismatch", op=hvd.Sum, process_set=s).tolist() == [len(s.ranks)] * 3


def test_ranks_that_register_other_sets_are_all_told(sets, odd, size):
    """The session goes on, also with unnamed collectives."""
    before = hvd.get_process_set_ids_and_ranks()
    with pytest.raises(
        hvd.MismatchError, match=rf"has the ranks \(0,\) on rank 0 but \(1,\) on rank {size - 1}; all ranks must agree; add and remove the same"
    ):
        hvd.add_process_set([1] if odd else [0])
    with pytest.raises(hvd.MismatchError, match="has an operation 'add_process_set' on rank 0 but 'remove_process_set'"):
        hvd.remove_process_set(sets[0]) if odd else hvd.add_process_set([0])
    with pytest.raises(hvd.MismatchError, match=rf"init\(\) is given 1 process sets on rank 0 but 2 on rank {size - 1}"):
        hvd.init(process_sets=[hvd.ProcessSet([0])] * (2 if odd else 1))
    with pytest.raises(hvd.MismatchError, match=rf"entry number 0 has the ranks \[0\] on rank 0 but \[1\] on rank {size - 1}"):
        hvd.init(process_sets=[hvd.ProcessSet([1] if odd else [0])])
    assert hvd.get_process_set_ids_and_ranks() == before
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [size] * 2


def test_what_cannot_be_a_set_is_refused_on_every_rank(sets, size):
    wrong = {f"is process set {s.process_set_id}": s.ranks for s in sets} | {
        "duplicate process set": range(size),
        f"rank {size} of process set": [0, size],
        "rank 0 is twice": [0, 0],
        "without ranks": [],
    }
    for said, ranks in wrong.items():
        with pytest.raises(hvd.SettingError) as caught:
            hvd.add_process_set(ranks)
        assert said in str(caught.value)
    for nothing in (["0"], [0.0], [True], 3):
        with pytest.raises(hvd.SettingError, match="numbers of ranks"):
            hvd.ProcessSet(nothing)


def test_init_registers_sets_and_finds_those_that_are_there(sets):
    known = [hvd.ProcessSet(reversed(s.ranks)) for s in sets]
    hvd.init(process_sets=known)
    assert [s.process_set_id for s in known] == [s.process_set_id for s in sets]
    if not sets:
        return  # there is none to give twice
    with pytest.raises(hvd.SettingError, match="entry number 1 is a duplicate"):
        hvd.init(process_sets=[known[0], hvd.ProcessSet(known[0].ranks)])


def test_sets_come_and_go_while_others_are_in_use(sets, rank, size):
    """Numbers are used again, and so is the memory."""
    if size == 1:
        return  # it has no set but that of all ranks
    changing = next(s for s in sets if len(s.ranks) > 1 or size == 2)
    others, number, place = [s for s in sets if s is not changing and s.included()], changing.process_set_id, next_place()
    for i in range(40):
        handles = [hvd.allreduce_async([np.full(3000, float(rank))], name=f"sets.busy.{i}", op=hvd.Sum, process_set=s) for s in others]
        assert hvd.remove_process_set(changing)
        assert (changing.process_set_id, changing.size(), changing.rank()) == (None, None, None)
        with pytest.raises(hvd.ProcessSetError, match="a set that is registered is expected"):
            hvd.barrier(process_set=changing)
        assert hvd.add_process_set(changing) is changing
        assert changing.process_set_id == number
        if changing.included():
            assert hvd.allreduce(np.full(5000, rank), op=hvd.Sum, process_set=changing)[0] == sum(changing.ranks)
        for handle in handles:
            handle.wait()
    assert next_place() == place


def next_place() -> int:
    """Where in this rank's shared memory the next set would lie."""
    transport = hvd.world().transport
    place = transport.reserve()
    transport.release(place)
    return place


def test_what_all_ranks_of_a_set_have_submitted_is_done_before_it_is_removed(sets, rank, size):
    """The rest fails, on the ranks that submitted it, and the set is gone on all."""
    if size < 3:
        return  # no set has two ranks
    changing = next(s for s in sets if len(s.ranks) > 1)
    for i in range(10):
        arrays = [np.full(2000, float(rank)) for _ in range(8)]
        lonely = None
        if changing.included():
            handles = [hvd.allreduce_async([a], name=f"sets.last.{i}.{n}", op=hvd.Sum, process_set=changing) for n, a in enumerate(arrays)]
            if changing.rank() == i % len(changing.ranks):
                lonely = hvd.allreduce_async([np.ones(2)], name="sets.lonely", process_set=changing)
        assert hvd.remove_process_set(changing)
        if changing.included():
            for handle, array in zip(handles, arrays, strict=True):
                handle.wait()
                assert (array == sum(changing.ranks)).all()
        if lonely is not None:
            with pytest.raises(hvd.HorovodInternalError, match=r"process set \d+ was removed before this collective was complete; wait for its handle first"):
                lonely.wait()
        hvd.add_process_set(changing)
