import json
import threading
import time

import pytest

from hvdlite.errors import SettingError
from hvdlite.telemetry.timeline import Timeline


def events_of(text: str) -> list[dict[str, object]]:
    """As a viewer reads it: an array whose end may be missing."""
    return json.loads(text if text.endswith("]\n") else text.rstrip(",\n") + "]")


def activities(events: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(e["ph"], e["name"]) for e in events if e["ph"] != "M" and e["name"] != "end"]


def test_every_event_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "trace.json"
    timeline = Timeline(str(path), 0)
    since = time.monotonic()
    seen = []
    for step in (
        lambda: timeline.negotiate("allreduce", "x", since),
        lambda: timeline.end("x"),
        lambda: timeline.run("allreduce", "x"),
        lambda: timeline.end("x"),
    ):
        step()
        seen.append(len(activities(events_of(path.read_text()))))
    assert seen == [1, 2, 3, 4]
    timeline.close()
    events = events_of(path.read_text())
    assert activities(events) == [("B", "NEGOTIATE_ALLREDUCE"), ("E", "NEGOTIATE_ALLREDUCE"), ("B", "ALLREDUCE"), ("E", "ALLREDUCE")]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["allreduce.x"]
    times = [e["ts"] for e in events if e["ph"] in "BE"]
    assert times == sorted(times)
    assert times[-1] < 60e6


def test_what_a_crash_leaves_opens_and_shows_what_was_under_way(python, tmp_path):
    path = tmp_path / "trace.json"
    done = python(
        f"from hvdlite.telemetry.timeline import Timeline\nimport os\nt = Timeline({str(path)!r}, 0)\nt.run('allgather', 'y')\nos.kill(os.getpid(), 9)\n"
    )
    assert done.returncode == -9
    assert activities(events_of(path.read_text())) == [("B", "ALLGATHER")]


def test_names_with_quotes_and_rows_of_their_own(tmp_path):
    path = tmp_path / "trace.json"
    timeline = Timeline(str(path), 3)
    for name in ('a"b\\', "ü", "broadcast.noname.1"):
        timeline.run("broadcast", name)
        timeline.end(name)
    timeline.close()
    events = events_of(path.read_text())
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ['broadcast.a"b\\', "broadcast.ü", "broadcast.noname.1"]
    assert len({e["tid"] for e in events if e["ph"] == "B"}) == 3
    assert {e["pid"] for e in events} == {3}


def test_cycles_are_marked_on_request_only(tmp_path):
    for marked in (True, False):
        timeline = Timeline(str(tmp_path / "trace.json"), 0, mark_cycles=marked)
        timeline.cycle()
        timeline.close()
        assert ("CYCLE_START" in (tmp_path / "trace.json").read_text()) is marked


def test_threads_write_whole_events_and_none_after_the_end(tmp_path):
    path = tmp_path / "trace.json"
    timeline = Timeline(str(path), 0)

    def work(number: int) -> None:
        for _ in range(200):
            timeline.run("allreduce", f"t{number}")
            timeline.end(f"t{number}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    size = path.stat().st_size
    timeline.run("allreduce", "late")
    timeline.end("t0")
    timeline.close()
    assert path.stat().st_size == size
    assert len(activities(events_of(path.read_text()))) == 4 * 200 * 2


def test_an_end_without_a_beginning_is_of_something_older(tmp_path):
    path = tmp_path / "trace.json"
    timeline = Timeline(str(path), 0)
    timeline.end("older")
    timeline.close()
    assert activities(events_of(path.read_text())) == []


def test_a_file_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"the timeline cannot be written to .*nowhere/t.json"):
        Timeline(str(tmp_path / "nowhere" / "t.json"), 0)
