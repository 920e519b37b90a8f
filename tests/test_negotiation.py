"""The agreement, played without MPI: every rank's rounds in one process, in lockstep."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite import negotiation
from hvdlite.compression import AllGather, AllReduce
from hvdlite.compression._simulate import answer
from hvdlite.errors import EngineError, MismatchError
from hvdlite.negotiation import Agreement, Negotiator, Signature, Vote


@dataclass
class Offer:
    name: str
    signature: bytes
    vote: Vote = Vote.ALL


def offer(name: str, vote: Vote = Vote.ALL, **differing) -> Offer:
    known = {"kind": "allreduce", "shapes": ((2, 3),), "dtypes": ("float32",), "op": "Average", "compression": "none"}
    return Offer(name, Signature(name, **(known | differing)).encode(), vote)


@dataclass
class Ranks:
    """Negotiators whose rounds are played together."""

    size: int
    capacity: int = 4096
    requests: list[list[object]] = field(default_factory=list)  # of the last round: for each step, every rank's request
    sent_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.negotiators = [Negotiator(r, self.size, self.capacity) for r in range(self.size)]

    def add(self, *offers: Offer, ranks=None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            for each in offers:
                self.negotiators[rank].add(each)

    def round(self) -> Agreement:
        """Play one round; all ranks must conclude the same."""
        rounds = [n.round() for n in self.negotiators]
        agreements: list[Agreement | None] = [None] * self.size
        answers: list[object] = [None] * self.size
        self.requests, self.sent_bytes = [], [0] * self.size
        while None in agreements:
            asked = []
            for rank, (generator, its_answer) in enumerate(zip(rounds, answers, strict=True)):
                try:
                    asked.append(generator.send(its_answer))
                except StopIteration as stop:
                    agreements[rank] = stop.value
            if not asked:
                break
            assert len(asked) == self.size
            self.requests.append(asked)
            for rank, request in enumerate(asked):
                self.sent_bytes[rank] += request.sent_bytes(self.size)
            answers = answer(asked)
        first = agreements[0]
        assert first is not None
        for agreement in agreements:
            assert agreement is not None
            assert agreement.ready == first.ready
            assert [(n, str(e), type(e)) for n, e in agreement.failed] == [(n, str(e), type(e)) for n, e in first.failed]
            assert (agreement.leaving, agreement.joined, agreement.last_to_join) == (first.leaving, first.joined, first.last_to_join)
        return first

    def settle(self) -> Agreement:
        """Play rounds until one settles something; news takes one round, a changed signature two."""
        for _ in range(3):
            agreement = self.round()
            if agreement.settled_something:
                return agreement
        return agreement

    def ready(self) -> list[str]:
        return [name for name, _ in self.round().ready]


def names(count: int) -> list[str]:
    return [f"t{i}" for i in range(count)]


@given(st.integers(1, 16), st.integers(1, 20), st.sampled_from([8, 4096]), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_order_on_any_rank_ends_in_the_same_order_everywhere(size: int, count: int, capacity: int, rng: random.Random):
    ranks = Ranks(size, capacity)
    for _ in range(3):  # new names first, then known ones, and with a small capacity forgotten ones
        queues = [rng.sample(names(count), count) for _ in range(size)]
        settled: list[str] = []
        while len(settled) < count:
            for rank, queue in enumerate(queues):
                for _ in range(max(rng.randint(0, 3), not ranks.negotiators[rank].has_business)):
                    if queue:
                        ranks.add(offer(queue.pop()), ranks=[rank])
            agreement = ranks.round()
            assert not agreement.failed
            settled += [name for name, _ in agreement.ready]
        assert sorted(settled) == sorted(names(count))
        assert all(not n.has_business for n in ranks.negotiators)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.sampled_from([8, 4096]), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_ranks_that_have_joined_hold_nobody_up_and_nobody_else_is_left_out(counts: list[int], capacity: int, rng: random.Random):
    """Rank r submits the first ``counts[r]`` names, in any order, then joins. Twice: names are new at first, then known."""
    ranks = Ranks(len(counts), capacity)
    for _ in range(2):
        queues = [rng.sample(names(count), count) for count in counts]
        submitted: list[set[str]] = [set() for _ in counts]
        settled: list[str] = []
        joined_before: frozenset[int] = frozenset()
        for _ in range(400):
            for rank, (queue, negotiator) in enumerate(zip(queues, ranks.negotiators, strict=True)):
                for _ in range(rng.randint(1, 3)):
                    if queue:
                        submitted[rank].add(queue[-1])
                        ranks.add(offer(queue.pop()), ranks=[rank])
                if not queue and not negotiator.has_business:
                    negotiator.join()
            agreement = ranks.round()
            assert not agreement.failed
            assert agreement.joined >= joined_before
            for name, vote in agreement.ready:
                assert vote is Vote.ALL
                assert [r for r, theirs in enumerate(submitted) if name not in theirs] == sorted(agreement.joined)
                settled.append(name)
            if agreement.last_to_join is not None:
                break
            joined_before = agreement.joined
        assert sorted(settled) == sorted(names(max(counts)))
        assert agreement.last_to_join in range(len(counts))
        assert agreement.last_to_join not in joined_before
        assert not any(n.joined or n.has_business for n in ranks.negotiators)


def test_what_was_announced_before_a_rank_joins_is_ready_without_it():
    ranks = Ranks(3)
    ranks.add(offer("x"), ranks=[0, 2])
    assert not ranks.round().settled_something
    ranks.negotiators[1].join()
    agreement = ranks.round()
    assert agreement.ready == [("x", Vote.ALL)]
    assert agreement.joined == {1}
    ranks.add(offer("x", Vote.NONE), ranks=[0, 2])  # known by now
    assert ranks.round().ready == [("x", Vote.NONE)]
    assert len(ranks.requests) == 1
    ranks.add(offer("y"), ranks=[0])
    ranks.add(offer("y", op="Sum"), ranks=[2])
    ((name, error),) = ranks.round().failed
    assert name == "y"
    assert "'Average' on rank 0 but 'Sum' on rank 2" in str(error)


def test_a_hundred_ranks_agree():
    ranks, rng = Ranks(100), random.Random(1)
    for _ in range(3):
        for rank in range(100):
            ranks.add(*map(offer, rng.sample(names(10), 10)), ranks=[rank])
        assert sorted(ranks.ready()) == sorted(names(10))


@pytest.mark.parametrize("size", [1, 2, 5, 16, 100])
def test_votes_are_anded_on_both_paths(size):
    for one in (Vote.ALL, Vote.FINITE, Vote.COMPLETE, Vote.NONE):
        ranks = Ranks(size)
        for _ in range(2):  # new, then known
            ranks.add(offer("x"), ranks=range(size - 1))
            ranks.add(offer("x", one), offer("y"), ranks=[size - 1])
            ranks.add(offer("y"), ranks=range(size - 1))
            assert dict(ranks.round().ready) == {"x": one, "y": Vote.ALL}


def test_known_names_take_one_request_without_details():
    ranks = Ranks(4)
    ranks.add(*map(offer, names(200)))
    assert len(ranks.ready()) == 200
    assert len(ranks.requests) == 3
    for _ in range(3):
        ranks.add(*map(offer, names(200)))
        assert len(ranks.ready()) == 200
        assert len(ranks.requests) == 1
        (vector,) = {(type(r), r.op, r.array.nbytes) for r in ranks.requests[0]}
        assert vector[:2] == (AllReduce, "band")
        assert vector[2] <= 8 * (3 + 3 * 4)


def test_news_of_a_rank_stays_with_the_others_until_they_need_it():
    ranks = Ranks(3)
    ranks.add(offer("x"), ranks=[0])
    assert not ranks.round().settled_something
    ranks.add(offer("y"), ranks=[1, 2])
    assert not ranks.round().settled_something
    ranks.add(offer("x"), ranks=[1])
    ranks.add(offer("y"), ranks=[0])
    assert ranks.ready() == ["y"]
    ranks.add(offer("x"), ranks=[2])
    assert ranks.ready() == ["x"]


def test_what_was_told_is_not_told_again():
    ranks = Ranks(2)
    ranks.add(offer("x"), ranks=[0])
    ranks.round()
    assert len(ranks.requests) == 3
    ranks.round()
    assert len(ranks.requests) == 1


CHANGES = [
    ("shape", {"shapes": ((2, 4),)}, "(2, 3)", "(2, 4)"),
    ("dtype", {"dtypes": ("float64",)}, "float32", "float64"),
    ("op", {"op": "Sum"}, "'Average'", "'Sum'"),
    ("root_rank", {"root": 1}, "-1", "1"),
    ("compression", {"compression": "topk:density=0.1"}, "'none'", "'topk:density=0.1'"),
    ("prescale_factor", {"prescale": 2.0}, "1.0", "2.0"),
    ("postscale_factor", {"postscale": 0.5}, "1.0", "0.5"),
    ("an operation", {"kind": "broadcast"}, "'allreduce'", "'broadcast'"),
    ("device", {"device": "cuda"}, "'cpu'", "'cuda'"),
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("noun", "change", "mine", "theirs"), CHANGES, ids=[c[0] for c in CHANGES])
def test_a_difference_is_told_to_all_with_name_ranks_and_values(noun, change, mine, theirs, known):
    ranks = Ranks(4)
    if known:
        ranks.add(offer("fc.weight"), offer("other"))
        assert len(ranks.ready()) == 2
    ranks.add(offer("fc.weight"), ranks=[0, 1, 3])
    ranks.add(offer("fc.weight", **change), ranks=[2])
    ((name, error),) = ranks.settle().failed
    assert (name, type(error)) == ("fc.weight", MismatchError)
    text = str(error)
    assert "'fc.weight'" in text
    assert f"{noun} " in text
    assert "on rank 0" in text
    assert "on rank 2" in text
    assert mine in text
    assert theirs in text
    ranks.add(offer("fc.weight", **change), offer("other"))  # and the session goes on
    assert {n for n, _ in ranks.settle().ready} | {n for n, _ in ranks.round().ready} == {"fc.weight", "other"}


BUCKET = {"tensors": ("a", "b", "c"), "shapes": ((4,), (2, 2), (1,)), "dtypes": ("float32",)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tensors": ("a", "x", "c")}, "'grads' has a tensor 'b' on rank 0 but 'x' on rank 1"),
        ({"shapes": ((4,), (2, 3), (1,))}, "'b' has shape (2, 2) on rank 0 but (2, 3) on rank 1"),
        ({"tensors": ("a", "b"), "shapes": ((4,), (2, 2))}, "'grads' has a number of tensors 3 on rank 0 but 2 on rank 1"),
    ],
)
def test_of_a_bucket_the_tensor_that_differs_is_named(change, said):
    ranks = Ranks(2)
    ranks.add(offer("grads", **BUCKET), ranks=[0])
    ranks.add(offer("grads", **(BUCKET | change)), ranks=[1])
    ((_, error),) = ranks.round().failed
    assert said in str(error)


def test_a_group_with_another_number_of_arrays_is_refused():
    ranks = Ranks(2)
    ranks.add(offer("g", shapes=((1,), (2,)), dtypes=("float32", "float32")), ranks=[0])
    ranks.add(offer("g", shapes=((1,),), dtypes=("float32",)), ranks=[1])
    ((_, error),) = ranks.round().failed
    assert "'g' has a number of tensors 2 on rank 0 but 1 on rank 1" in str(error)


def test_a_signature_may_change_on_all_ranks():
    ranks = Ranks(3)
    ranks.add(offer("x"))
    assert ranks.ready() == ["x"]
    ranks.add(offer("x", shapes=((7,),)))
    assert ranks.ready() == ["x"]
    assert len(ranks.requests) == 3
    ranks.add(offer("x", shapes=((7,),)))
    assert ranks.ready() == ["x"]
    assert len(ranks.requests) == 1


def test_a_signature_that_some_ranks_change_later_is_compared_as_well():
    ranks = Ranks(3)
    ranks.add(offer("x"))
    ranks.round()
    ranks.add(offer("x"), ranks=[0, 1])
    assert not ranks.round().settled_something
    ranks.add(offer("x", op="Sum"), ranks=[2])
    ((name, _),) = ranks.settle().failed
    assert name == "x"
    assert all(not n.has_business for n in ranks.negotiators)


def test_the_least_recently_used_name_is_forgotten_by_all():
    ranks = Ranks(3, capacity=8)
    ranks.add(*map(offer, names(8)))
    ranks.round()
    ranks.add(offer("t0"))
    ranks.round()
    ranks.add(offer("new"))  # t1 has to go, t0 was just used
    ranks.round()
    for name, steps in (("t0", 1), ("t2", 1), ("t1", 3)):
        ranks.add(offer(name))
        assert ranks.ready() == [name]
        assert len(ranks.requests) == steps, name


def test_a_name_forgotten_while_some_ranks_wait_for_it_is_announced_anew():
    ranks = Ranks(2, capacity=8)
    ranks.add(*map(offer, names(8)))
    ranks.round()
    ranks.add(offer("t0"), ranks=[0])
    ranks.add(*(offer(f"u{i}") for i in range(8)))
    assert len(ranks.ready()) == 8
    ranks.add(offer("t0"), ranks=[1])
    assert ranks.settle().ready == [("t0", Vote.ALL)]


def test_memory_stays_bounded():
    ranks = Ranks(2, capacity=64)
    for i in range(1000):
        ranks.add(offer(f"n{i}"))
        ranks.round()
    negotiator = ranks.negotiators[0]
    assert len(negotiator._known) == 64
    assert len(negotiator._slots) == 64
    assert [*negotiator._told, *negotiator._partial, *negotiator._pending] == []


@pytest.mark.parametrize("size", [2, 64, 65, 100])
def test_who_leaves_is_known_to_all(size):
    ranks = Ranks(size)
    ranks.add(offer("x"), ranks=range(size - 1))
    ranks.negotiators[-1].leave()
    ranks.negotiators[0].leave()
    agreement = ranks.round()
    assert agreement.leaving == {0, size - 1}
    assert not agreement.ready


def test_a_leaving_rank_has_business_and_an_idle_one_has_not():
    ranks = Ranks(2)
    assert not ranks.negotiators[0].has_business
    ranks.add(offer("x"), ranks=[0])
    assert ranks.negotiators[0].has_business
    ranks.negotiators[0].clear()
    assert not ranks.negotiators[0].has_business
    ranks.negotiators[0].leave()
    assert ranks.negotiators[0].has_business


# --- bad messages ---


def through_news(raws: list[bytes]):
    """Play rank 0 of a round in which the ranks send these details."""
    negotiator = Negotiator(0, len(raws), 64)
    negotiator.add(offer("x"))
    generator = negotiator.round()
    vector = next(generator).array
    assert isinstance(generator.send(vector), AllGather)
    sizes = [(np.array([len(raw)], np.int64),) for raw in raws]
    assert isinstance(generator.send(sizes), AllGather)
    generator.send([(np.frombuffer(raw, np.uint8),) for raw in raws])


GOOD = negotiation._ENCODER.encode([negotiation._Detail(offer("x").signature, 3)])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        GOOD[:-1],
        b"\x93\x01\x02\x03",
        b"\xdd\xff\xff\xff\xff",
        negotiation._ENCODER.encode([negotiation._Detail(b"no signature", 3)]),
        negotiation._ENCODER.encode([negotiation._Detail(b"", 3)]),
        negotiation._ENCODER.encode([[offer("x").signature, "finite"]]),
    ],
)
def test_details_that_cannot_be_read_are_refused(raw):
    with pytest.raises(EngineError, match="rank 1 sent details that cannot be read"):
        through_news([GOOD, raw])


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_do_more_than_be_refused(raw):
    try:
        through_news([GOOD, raw])
    except (EngineError, StopIteration):
        return
    raise AssertionError("the round should have ended")


def test_details_of_an_absurd_size_are_refused_before_memory_is_taken(monkeypatch):
    negotiator = Negotiator(0, 2, 64)
    negotiator.add(offer("x"))
    generator = negotiator.round()
    generator.send(next(generator).array)
    with pytest.raises(EngineError, match=f"announced {1 << 60} bytes"):
        generator.send([(np.array([10], np.int64),), (np.array([1 << 60], np.int64),)])


def test_control_bytes_a_rank_grow_slower_than_the_ranks():
    known, new = {}, {}
    for size in (2, 4, 16, 64):
        ranks = Ranks(size)
        ranks.add(*map(offer, names(8)))
        ranks.round()
        new[size] = max(ranks.sent_bytes)
        ranks.add(*map(offer, names(8)))
        ranks.round()
        known[size] = max(ranks.sent_bytes)
    assert known[2] == 48
    assert known[64] < 2 * known[2]  # 2 (P-1)/P of a vector that has a bit a rank
    assert new[64] <= 63 * new[2]  # news are rare, and a gather
