"""Mismatches, exceptions, ranks that stop or leave: no handle waits forever."""

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from engines import LIMIT_S, Held, TwoRounds, reduction, result_of, until

from hvdlite import compression
from hvdlite.errors import DuplicateNameError, EngineError, HorovodInternalError, MismatchError, PeerLeftError, StalledError
from hvdlite.operations import BarrierOperation
from hvdlite.submissions import Handle


def error_of(handle: Handle) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        result_of(handle)
    return caught.value


def test_a_name_in_flight_is_refused_here_only(thread_world):
    world = thread_world(2)
    first, second = np.ones(3), np.ones(3)
    handle = world.engines[0].submit(reduction("x", first, 0, 2))
    with pytest.raises(DuplicateNameError, match="'x' is still being processed on rank 0") as caught:
        world.engines[0].submit(reduction("x", second, 0, 2))
    assert isinstance(caught.value, ValueError)  # as Horovod's callers expect
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
    until(lambda: world.engines[0].channel._negotiator.pending)
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
