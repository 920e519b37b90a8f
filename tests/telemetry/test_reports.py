import json

import pytest

from hvdlite.errors import SettingError
from hvdlite.telemetry.metrics import Metrics
from hvdlite.telemetry.reports import COUNTERS, Reports, StopAt, parse_stop


def test_limits_are_read_and_reached():
    assert parse_stop("  ") is None
    assert parse_stop("steps=3") == StopAt("steps", 3)
    assert [parse_stop("steps=3").reached(step, 1e9, {}) for step in (2, 3, 4)] == [False, True, True]
    assert [parse_stop("minutes=0.5").reached(0, s, {}) for s in (29.9, 30)] == [False, True]
    assert [parse_stop("loss<=0.1").reached(0, 0, {"loss": x}) for x in (0.2, 0.1, float("nan"))] == [False, True, False]
    assert [parse_stop("acc >= .9").reached(0, 0, {"acc": x}) for x in (0.2, 0.9)] == [False, True]
    assert not parse_stop("loss<=0.1").reached(0, 0, {"accuracy": 0.0})


@pytest.mark.parametrize("written", ["steps", "steps=0", "steps=x", "minutes=-1", "epochs=3", "loss<=low", "loss<0.1", "loss=0.1"])
def test_a_limit_that_is_none_is_refused(written):
    with pytest.raises(SettingError, match="cannot be read; a limit is expected"):
        parse_stop(written)


def test_rank_0_writes_one_object_a_line(tmp_path):
    path = tmp_path / "r.jsonl"
    reports = Reports(str(path), None, 0)
    reports.write_job({"ranks": "2"})
    reports.write_weights("abc")
    reports.write(5, 1.25, {"loss": 0.5}, Metrics(steps=4, wire_bytes=7, exposed_ms=1.5))
    assert len(path.read_text().splitlines()) == 3, "a line is on disk when it is written"
    reports.end(Metrics(steps=5))
    reports.end(Metrics())
    job, first, second, last = map(json.loads, path.read_text().splitlines())
    assert job == {"job": {"ranks": "2"}}
    assert first == {"weights": "abc"}
    counters = dict.fromkeys(COUNTERS, 0.0) | {"wire_bytes": 7, "exposed_ms": 1.5}
    assert second == {"step": 5, "seconds": 1.25, "optimizer_steps": 4, **counters, "values": {"loss": 0.5}}
    assert last["end"]["steps"] == 5


def test_other_ranks_write_nothing(tmp_path):
    path = tmp_path / "r.jsonl"
    reports = Reports(str(path), None, 1)
    reports.write(5, 1.25, {"loss": 0.5}, Metrics())
    reports.end(Metrics())
    assert reports.are_wanted
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_explained(tmp_path):
    with pytest.raises(SettingError, match=r"report_file=.* cannot be written"):
        Reports(str(tmp_path / "missing" / "r.jsonl"), None, 0)
