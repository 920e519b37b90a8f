"""What a step was made of."""

import json

import pytest
from comparisons import PLAN, leave_run

from hvdlite.abtest import runs


def parts_of(folder):
    return runs.read(runs.folder_of(folder, 0, "none"), PLAN).parts


def test_the_parts_add_up_to_the_step(tmp_path):
    leave_run(tmp_path, "none", 0, step_s=0.01)
    parts = parts_of(tmp_path)
    assert parts.compute_ms + parts.exposed_ms == pytest.approx(10)
    assert (parts.encode_ms, parts.wire_ms, parts.decode_ms, parts.hidden_codec_ms) == pytest.approx((0.1, 0.3, 0.1, 0.1))


def test_the_warm_up_does_not_count(tmp_path):
    leave_run(tmp_path, "none", 0)
    path = runs.folder_of(tmp_path, 0, "none") / runs.REPORTS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[2:-1]:  # half a second of waiting before the first report
        line["exposed_ms"] += 500
        line["seconds"] += 0.5
    path.write_text("\n".join(map(json.dumps, lines)))
    assert parts_of(tmp_path).exposed_ms == pytest.approx(0.5)


def test_with_a_single_report_the_counters_of_the_end_tell(tmp_path):
    leave_run(tmp_path, "none", 0, step_s=0.01)
    path = runs.folder_of(tmp_path, 0, "none") / runs.REPORTS
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], *lines[-2:]]))
    parts = parts_of(tmp_path)
    assert parts.exposed_ms == pytest.approx(0.5)
    assert parts.compute_ms + parts.exposed_ms == pytest.approx(10)


def test_without_an_optimizer_of_ours_there_are_none(tmp_path):
    leave_run(tmp_path, "none", 0)
    path = runs.folder_of(tmp_path, 0, "none") / runs.REPORTS
    path.write_text(path.read_text().replace('"steps": 100', '"steps": 0'))
    assert parts_of(tmp_path) is None
