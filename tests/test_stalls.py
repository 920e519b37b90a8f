"""Who keeps the others waiting: played without engines or MPI."""

import logging
import os
import sys
import threading
import time
from collections import defaultdict

import pytest

from hvdlite import stalls
from hvdlite.settings import Settings
from hvdlite.stalls import StallWatch, where_is_the_main_thread
from hvdlite.transports import Topology


class Post:
    """A transport that only carries notes."""

    def __init__(self, rank: int, size: int, mail):
        self.topology, self.mail = Topology(rank, size), mail

    def post(self, rank: int, note: bytes) -> None:
        assert len(note) < 1 << 16
        self.mail[rank].append((self.topology.rank, note))

    def notes(self):
        found, self.mail[self.topology.rank] = self.mail[self.topology.rank], []
        return found


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when told to."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(stalls.time, "monotonic", lambda: Clock.now)
    return Clock


def watches(size: int, **knobs):
    mail = defaultdict(list)
    return [StallWatch(Post(r, size, mail), Settings(**({"stall_warning_seconds": 60.0} | knobs))) for r in range(size)], mail


def play(clock, all_watches, waiting, seconds, silent=()):
    """Let every rank look, again and again; the errors by rank."""
    errors = {}
    end = clock.now + seconds
    while clock.now < end and not errors:
        for rank, watch in enumerate(all_watches):
            if rank not in silent and (error := watch.look(waiting[rank])):
                errors[rank] = error
        clock.now += 0.25
    return errors


def test_nobody_waits_nobody_asks(clock, caplog):
    ranks, mail = watches(3)
    assert play(clock, ranks, [[]] * 3, 200) == {}
    assert not any(mail.values())
    assert caplog.records == []


def test_short_waits_are_no_stall(clock, caplog):
    ranks, mail = watches(2)
    play(clock, ranks, [[("x", clock.now)], []], 59)
    assert not any(mail.values())
    assert caplog.records == []


def test_the_report_names_rank_tensor_and_place(clock, caplog):
    ranks, _ = watches(3)
    since = clock.now
    with caplog.at_level(logging.WARNING, "hvdlite"):
        play(clock, ranks, [[("x", since)], [("y", since)], [("x", since)]], 63)
    texts = [r.getMessage() for r in caplog.records]
    mine = next(t for t in texts if t.startswith("rank 0 has waited 62 s for 'x'"))
    assert "rank 1 (host " in mine
    assert f"pid {os.getpid()}" in mine
    assert "has not submitted 'x'; it waits for 'y'; its main thread is at " in mine
    assert "test_stalls.py:" in mine
    assert "rank 2 (" not in mine  # it has submitted x
    assert not any(t.startswith("rank 2") for t in texts)  # rank 0 says the same


def test_a_rank_that_waits_for_nothing_is_told_so(clock, caplog):
    ranks, _ = watches(2)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        play(clock, ranks, [[("x", clock.now)], []], 63)
    assert "has not submitted 'x'; it waits for nothing" in caplog.text


def test_a_rank_that_does_not_answer_is_told_so(clock, caplog):
    ranks, _ = watches(3)
    waiting = [[("x", clock.now)]] * 3
    with caplog.at_level(logging.WARNING, "hvdlite"):
        play(clock, ranks, waiting, 63, silent={1})
    assert "rank 1: does not answer (stopped, or lost)" in caplog.text
    assert len(caplog.records) == 1


def test_when_all_have_submitted_it_the_network_is_blamed(clock, caplog):
    ranks, _ = watches(2)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        play(clock, ranks, [[("x", clock.now)]] * 2, 63)
    assert "all have submitted it, the network does not deliver" in caplog.text


def test_it_is_said_again_but_not_all_the_time(clock, caplog):
    ranks, _ = watches(2)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        play(clock, ranks, [[("x", clock.now)], []], 310)
    assert 3 <= len(caplog.records) <= 5


def test_zero_means_never(clock, caplog):
    ranks, mail = watches(2, stall_warning_seconds=0.0)
    assert play(clock, ranks, [[("x", clock.now)], []], 10_000) == {}
    assert not any(mail.values())


@pytest.mark.parametrize(("warn", "fail"), [(60.0, 90.0), (0.0, 5.0), (60.0, 5.0), (5.0, 60.0), (10.0, 10.0)])
def test_the_limit_holds_whatever_the_warning_is(clock, warn, fail):
    ranks, _ = watches(2, stall_warning_seconds=warn, stall_shutdown_seconds=fail)
    start = clock.now
    errors = play(clock, ranks, [[("x", start)], []], 300)
    assert errors.keys() == {0}
    assert "has not submitted 'x'" in str(errors[0])
    assert fail <= clock.now - start <= fail + stalls.ANSWER_SECONDS + 2


@pytest.mark.parametrize("note", [b"", b"\xc1", b"\x81\xa4type\xa3ask", b"\x82\xa4type\xa4tell\xa3has\x90", os.urandom(40)])
def test_notes_that_cannot_be_read_are_no_answer(clock, note):
    ranks, mail = watches(2)
    mail[0].append((1, note))
    assert ranks[0].look([("x", clock.now)]) is None


def test_long_names_do_not_spoil_the_answer(clock, caplog):
    ranks, _ = watches(2)
    names = [(f"{i}." + "n" * 10_000, clock.now) for i in range(20)]
    with caplog.at_level(logging.WARNING, "hvdlite"):
        play(clock, ranks, [names, []], 63)
    assert "rank 1 (host " in caplog.text


def test_the_place_is_the_users_own_code(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import time\ndef epoch(answer):\n    answer.wait(20)\n", encoding="utf-8")
    names: dict = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    event, found = threading.Event(), []

    def look() -> None:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and not (found and "train.py" in found[-1]):
            found.append(where_is_the_main_thread())
            time.sleep(0.01)
        event.set()

    thread = threading.Thread(target=look)
    thread.start()
    names["epoch"](event)
    thread.join()
    assert found[-1] == f"{path}:3 in epoch"
    assert where_is_the_main_thread().startswith(f"{__file__}:{sys._getframe().f_lineno} in test_the_place")
