"""Turns on a connection; the messages themselves are tested on ranks of MPI, in tests/parallel/test_transport.py."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.transports._messages import Scratch, SendQueue


@dataclass(eq=False)
class Member:
    turn: int
    num_unsent: int


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1))
def test_the_earliest_with_something_to_send_may_always_begin(members):
    queue = SendQueue()
    queue.members = [Member(*m) for m in members]
    earliest = min((m for m in queue.members if m.num_unsent), key=lambda m: m.turn, default=None)
    for member in queue.members:
        assert queue.may_begin(member) == (earliest is None or member.turn <= earliest.turn)
    while queue.members:
        queue.leave(queue.members[0])
    queue.leave(Member(0, 0))  # it had left before


def test_an_answer_stays_until_the_request_after_the_next():
    scratch = Scratch()
    taken = []
    for value in range(3):
        scratch.begin(300)
        arrays = [scratch.take(np.empty(3, np.float64)), scratch.take(np.empty((2, 5), np.int8))]
        for array in arrays:
            array[...] = value
        taken.append(arrays)
        if value:
            assert all((a == value - 1).all() for a in taken[value - 1])
    assert np.shares_memory(taken[0][0], taken[2][0])
    assert all(a.ctypes.data % 8 == 0 for arrays in taken for a in arrays[:1])
