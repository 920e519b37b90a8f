"""The MPI transport answers as the simulator does, in one piece or in many."""

import time

import ml_dtypes
import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.compression import AllGather, AllReduce, AllToAll, Broadcast
from hvdlite.compression._simulate import answer
from hvdlite.transports import CONTROL
from hvdlite.transports import _messages as messages_module
from hvdlite.transports import mpi as mpi_module


@pytest.fixture(scope="module")
def transport(_world):
    """A transport of its own: the engine's belongs to the engine's thread."""
    made = mpi_module.MpiTransport(2)
    made.is_quiet = True
    yield made
    if made.is_quiet:  # freeing a communicator waits for what is under way on it
        made.close()


def finish(transport, pending):
    deadline = time.monotonic() + 60
    transport.is_quiet = False
    while not pending.done():
        assert time.monotonic() < deadline, "the request does not end"
        time.sleep(1e-5)
    transport.is_quiet = True
    return pending.answer()


def noise(rank: int, count: int, dtype: str) -> np.ndarray:
    values = np.random.default_rng(rank).integers(0, 3, count)
    return values.astype(getattr(ml_dtypes, dtype, None) or dtype)


REQUESTS = {
    **{f"allreduce-{op}-{dtype}": (lambda r, p, op=op, dtype=dtype: AllReduce(noise(r, 41, dtype), op))
       for op in ("sum", "min", "max", "product") for dtype in ("uint8", "int64", "float32")},
    "allreduce-band": lambda r, p: AllReduce(np.random.default_rng(r).integers(0, 1 << 63, 37, np.uint64), "band"),
    "allreduce-matrix": lambda r, p: AllReduce(noise(r, 42, "float32").reshape(6, 7)),
    "allreduce-scalar": lambda r, p: AllReduce(np.array(float(r))),
    "allreduce-nothing": lambda r, p: AllReduce(np.zeros((0, 3))),
    "allgather": lambda r, p: AllGather((noise(r, 40, "float32"), noise(r, 3, "int64"), noise(r, 5, "bfloat16"))),
    "allgather-large": lambda r, p: AllGather((noise(r, 100, "float64"),)),
    "allgather-nothing": lambda r, p: AllGather((noise(r, 0, "float32"),)),
    "allgather-matrix": lambda r, p: AllGather((noise(r, 12, "float32").reshape(3, 4), np.array(1.5))),
    "allgatherv": lambda r, p: AllGather((noise(r, 30 * r, "uint8"),), tuple(30 * q for q in range(p))),
    "alltoall": lambda r, p: AllToAll([(noise(10 * r + q, 23, "float16"), noise(r, 1, "float32")) for q in range(p)]),
    "alltoall-large": lambda r, p: AllToAll([(noise(10 * r + q, 150, "float32"),) for q in range(p)]),
    "alltoall-nothing": lambda r, p: AllToAll([(noise(r, 0, "float32"),) for q in range(p)]),
    **{f"broadcast-{dtype}": (lambda r, p, dtype=dtype: Broadcast(noise(r, 50, dtype), p - 1)) for dtype in ("bool", "bfloat16", "complex64", "float64")},
    "broadcast-scalar": lambda r, p: Broadcast(np.array(float(r)), 0),
    "broadcast-nothing": lambda r, p: Broadcast(np.zeros(0), 0),
}  # fmt: skip


@pytest.mark.parametrize("large_bytes", [1 << 30, 1], ids=["by the library", "by messages"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_every_request_in_one_piece_and_in_many(transport, rank, size, monkeypatch, kind, large_bytes):
    monkeypatch.setattr(mpi_module, "LARGE_BYTES", large_bytes)
    monkeypatch.setattr(mpi_module, "MAX_COUNT", 16 if large_bytes == 1 else 1 << 30)
    monkeypatch.setattr(messages_module, "PIECE_BYTES", 64)
    asked = [REQUESTS[kind](r, size) for r in range(size)]
    expected = answer([REQUESTS[kind](r, size) for r in range(size)])[rank]
    found = finish(transport, transport.start(asked[rank], CONTROL if kind == "allreduce-band" else 1))
    if isinstance(asked[rank], AllReduce | Broadcast):
        assert found is asked[rank].array
        assert found.tobytes() == expected.tobytes()
    else:
        assert [[(a.shape, a.dtype, a.tobytes()) for a in row] for row in found] == [[(a.shape, a.dtype, a.tobytes()) for a in row] for row in expected]


def test_large_requests_travel_as_messages_in_pieces(transport, size, monkeypatch):
    if size == 1:
        return  # there is nobody to send to
    monkeypatch.setattr(mpi_module, "LARGE_BYTES", 1)
    monkeypatch.setattr(messages_module, "PIECE_BYTES", 64)
    transport.prepare(0, False, 0)
    requests = {"reduce": AllReduce(np.ones(48 * size)), "gather": AllGather((np.ones(50),)), "exchange": AllToAll([(np.ones(20),)] * size)}
    posted = {}
    for name, request in requests.items():
        pending = transport.start(request, 0)
        posted[name] = {queue: len(stages) for queue, stages in pending._queues.items()}
        finish(transport, pending)
    to_receive = {"reduce": 12 if size == 2 else 6, "gather": 7, "exchange": 3}
    ahead = messages_module.PIECES_AHEAD
    for name, queues in posted.items():  # all that will come is expected from the beginning; a few pieces are sent ahead
        assert {queue[0]: count for queue, count in queues.items()} == {"arrived": to_receive[name], "sent": min(ahead, to_receive[name])}
        assert len(queues) == 2 * (size - 1)


@pytest.mark.parametrize("lengths", [(0, 5000, 1), (3000, 0, 0)])
def test_ranks_that_send_much_wait_for_none_that_send_nothing(transport, rank, size, monkeypatch, lengths):
    monkeypatch.setattr(mpi_module, "LARGE_BYTES", 1)
    monkeypatch.setattr(messages_module, "PIECE_BYTES", 64)
    sizes = tuple((lengths * 2)[:size])
    rows = finish(transport, transport.start(AllGather((np.full(sizes[rank], rank, np.uint8),), sizes), 0))
    assert [row.tolist() for (row,) in rows] == [[r] * n for r, n in enumerate(sizes)]


def test_a_sum_of_many_pieces_runs_in_the_order_of_the_ranks(transport, rank, size):
    everyone = [np.random.default_rng(r).standard_normal(1_200_007).astype(np.float32) for r in range(size)]
    expected = everyone[0].copy()
    for other in everyone[1:]:
        expected += other
    mine = everyone[rank].copy()
    finish(transport, transport.start(AllReduce(mine, factor=1 / size), 0))
    assert mine.tobytes() == (expected * np.float32(1 / size)).tobytes()


@pytest.mark.parametrize("count", [3, 10_000])
def test_the_factor_applies_to_small_and_large(transport, rank, count):
    array = np.full(count, rank + 1.0)
    finish(transport, transport.start(AllReduce(array, "max", factor=0.5), 0))
    assert (array == hvd.size() / 2).all()


def test_lanes_do_not_mix(transport, rank):
    """Started in one order, finished in another on every rank."""
    arrays = [np.full(1000, 10.0 * lane + rank) for lane in range(2)]
    pending = [transport.start(AllReduce(a, "max"), lane) for lane, a in enumerate(arrays)]
    for lane in (0, 1) if rank % 2 else (1, 0):
        finish(transport, pending[lane])
    assert [a[0] for a in arrays] == [hvd.size() - 1, 10 + hvd.size() - 1]


def test_notes_reach_their_reader(transport, rank, size):
    others = [r for r in range(size) if r != rank]
    for other in others:
        transport.post(other, f"from {rank} to {other}".encode())
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + 60
    while len(found) < len(others):
        found |= dict(transport.notes())
        assert time.monotonic() < deadline
    assert found == {other: f"from {other} to {rank}".encode() for other in others}
    hvd.barrier()
    assert transport.notes() == []


def test_the_topology_is_of_one_node(transport, rank, size):
    t = transport.topology
    assert (t.rank, t.size, t.local_rank, t.local_size, t.cross_rank, t.cross_size, t.is_homogeneous) == (rank, size, rank, size, 0, 1, True)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_each_rank_starts_first_all_turns_end(transport, rank, size, monkeypatch, seed):
    """Later turns wait with their pieces for earlier ones; no order of starting makes ranks wait for each other in a circle."""
    monkeypatch.setattr(mpi_module, "LARGE_BYTES", 1)
    monkeypatch.setattr(messages_module, "PIECE_BYTES", 64)
    arrays = [np.full(1000 * size, rank + 10.0 * turn) for turn in range(2)]
    order = np.random.default_rng(7 * seed + rank).permutation(2)
    pending = []
    for turn in order:
        transport.prepare(int(turn), False, int(turn))
        pending.append(transport.start(AllReduce(arrays[turn], "max"), int(turn)))
    transport.is_quiet = False
    deadline = time.monotonic() + 60
    while sum(p.done() for p in pending) < len(pending):
        assert time.monotonic() < deadline
        time.sleep(1e-5)
    transport.is_quiet = True
    assert [set(a) for a in arrays] == [{size - 1}, {size + 9}]
    assert not transport._sending.members
