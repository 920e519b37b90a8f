"""The simulator: each request means what the contract says, and a compressor that breaks it is caught."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import pytest

from hvdlite.arrays import ops
from hvdlite.compression import AllGather, AllReduce, AllToAll, Broadcast, Bucket, Compressor, Dense, simulate


@dataclass
class Asks(Compressor):
    """Asks whatever the test asks."""

    question: Callable[[Bucket], Generator]

    def exchange(self, bucket):
        result = yield from self.question(bucket)
        return result, Dense(lambda: bucket.flat)

    def wire_bytes(self, shapes, num_ranks):
        return 0


def ask(question, ranks: int = 3, make=np.asarray):
    """Rank r has the vector [r+1, 2(r+1)]."""
    flats = [make(np.array([1, 2], np.float32) * (rank + 1)) for rank in range(ranks)]
    buckets = [Bucket.of(flat, [("w", (2,))], rank, ranks) for rank, flat in enumerate(flats)]
    outcome = simulate([Asks(question)] * ranks, buckets)
    return [ops(m).to_numpy(m).tolist() for m in outcome.means], outcome


@pytest.mark.parametrize(("op", "expected"), [("sum", [6, 12]), ("min", [1, 2]), ("max", [3, 6]), ("product", [6, 48])])
def test_allreduce(op, expected, make):
    def question(bucket):
        return (yield AllReduce(bucket.flat, op))

    means, outcome = ask(question, make=make)
    assert means == [expected] * 3
    assert outcome.sent_bytes == [round(4 / 3 * 8)] * 3


def test_allgather(make):
    def question(bucket):
        parts = yield AllGather((bucket.flat, bucket.flat[:1]))
        return ops(bucket.flat).concat([array for part in parts for array in part])

    means, outcome = ask(question, make=make)
    assert means == [[1, 2, 1, 2, 4, 2, 3, 6, 3]] * 3
    assert outcome.sent_bytes == [2 * 12] * 3


def test_alltoall(make):
    def question(bucket):
        parts = yield AllToAll([(bucket.flat * (10 * to + 1),) for to in range(bucket.num_ranks)])
        return ops(bucket.flat).concat([part[0] for part in parts])

    means, outcome = ask(question, make=make)
    assert means == [[f * (10 * to + 1) * (sender + 1) for sender in range(3) for f in (1, 2)] for to in range(3)]
    assert outcome.sent_bytes == [2 * 8] * 3


def test_broadcast_fills_in_place(make):
    def question(bucket):
        answer = yield Broadcast(bucket.flat, root=1)
        assert answer is bucket.flat
        return answer

    means, outcome = ask(question, make=make)
    assert means == [[2, 4]] * 3
    assert outcome.sent_bytes == [round(2 / 3 * 8)] * 3


def test_several_rounds_are_counted_together():
    def question(bucket):
        total = yield AllReduce(bucket.flat)
        return (yield AllReduce(total))

    means, outcome = ask(question, ranks=2)
    assert means == [[6, 12]] * 2
    assert outcome.sent_bytes == [16] * 2
    assert len(outcome.requests) == 2


def test_ranks_must_ask_for_the_same():
    def kinds(bucket):
        yield AllReduce(bucket.flat) if bucket.rank else Broadcast(bucket.flat, 0)
        return bucket.flat

    def shapes(bucket):
        yield AllReduce(bucket.flat[: bucket.rank + 1])
        return bucket.flat

    def lengths(bucket):
        if bucket.rank:
            yield AllReduce(bucket.flat)
        return bucket.flat

    for question, text in ((kinds, "different things"), (shapes, "different things"), (lengths, "1 of 2 ranks were done")):
        with pytest.raises(AssertionError, match=text):
            ask(question, ranks=2)
