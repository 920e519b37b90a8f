"""Turns on a connection; the messages themselves are tested on ranks of MPI, in tests/parallel/test_transport.py."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.transports._messages import PIECE_BYTES, PIECES_AHEAD, Messages, Scratch, SendQueue, exchange


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


def test_memory_is_used_again_when_nobody_holds_an_array_in_it():
    scratch = Scratch()

    def take(value: int, num_bytes: int = 300):
        scratch.begin(num_bytes)
        arrays = [scratch.take(np.empty(3, np.float64)), scratch.take(np.empty((2, 5), np.int8))]
        for array in arrays:
            array[...] = value
        return arrays

    held = {value: take(value) for value in range(5)}
    assert all((array == value).all() for value, arrays in held.items() for array in arrays)
    assert all(arrays[0].ctypes.data % 8 == 0 for arrays in held.values())
    places = {value: arrays[0].ctypes.data for value, arrays in held.items()}
    part = held.pop(3)[1][:1]
    del held[1]
    again = take(6)
    assert again[0].ctypes.data == places[1]
    assert take(7)[0].ctypes.data not in places.values(), "somebody holds a part of an array of the third one"
    assert (part == 3).all()


def test_memory_that_is_too_small_is_given_up():
    scratch = Scratch()
    for num_bytes in (100, 200, 400, 300):
        scratch.begin(num_bytes)
        assert scratch.take(np.empty(num_bytes, np.uint8)).size == num_bytes
    assert [b.size for b in scratch._buffers] == [400]


class Wire:
    """Stands in for a communicator of two ranks, and for MPI: notes what is sent, and delivers everything or nothing."""

    rank, size, BYTE = 0, 2, "byte"

    def __init__(self):
        self.sent, self.delivers, self.Request = [], False, self

    def Isend(self, buffer, other, tag):
        self.sent.append(int(buffer[0][0]))
        return True

    def Irecv(self, buffer, other, tag):
        return None

    def Testall(self, requests):
        return all(request or self.delivers for request in requests)


def test_no_piece_overtakes_those_of_an_earlier_request_even_if_the_other_rank_is_ahead():
    wire, queue = Wire(), SendQueue()

    def started(number):
        messages = Messages(wire, wire, False, queue, (0, number), lambda: None, lambda speed: None)
        exchange(messages, Scratch(), [(np.full(6 * PIECE_BYTES, number, np.uint8),)] * 2)
        messages.begin()
        return messages

    first, second = started(1), started(2)
    assert wire.sent == [1] * PIECES_AHEAD
    wire.delivers = True  # the other rank has sent both
    assert not second.done(), "it has the other rank's part, and has sent nothing"
    assert wire.sent == [1] * PIECES_AHEAD
    while not (first.done() and second.done()):
        assert len(wire.sent) <= 12
    assert wire.sent == [1] * 6 + [2] * 6
