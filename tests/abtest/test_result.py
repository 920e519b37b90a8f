"""From what runs left to the answer."""

import csv
import json
import math
import sys
from functools import partial

import numpy as np
import pytest
from comparisons import PLAN, analysed, leave_both, leave_run

from hvdlite.abtest import display, result, runs
from hvdlite.errors import SettingError

pytest.importorskip("scipy")
pytest.importorskip("rich")


@pytest.fixture
def leave(tmp_path):
    return partial(leave_run, tmp_path)


def test_the_answer_and_its_files(tmp_path, capsys):
    leave_both(tmp_path)
    answer = analysed(tmp_path)
    none, int8 = answer.arms
    assert int8.judged.verdict == int8.judged.words == "faster and not worse"
    assert none.judged is None
    assert (none.wire_bytes_per_step, int8.wire_bytes_per_step, none.exposed_ms_per_step) == (1000, 250, 0.5)
    assert int8.judged.time_ratio == pytest.approx(0.6, rel=0.05)
    assert (int8.num_good, int8.num_reached, answer.missing) == (6, int8.num_reached, [])
    assert answer.target > none.metric_mean
    result.write(answer, tmp_path)
    assert result.load(tmp_path / "ab.json") == answer
    rows = list(csv.DictReader((tmp_path / "ab.csv").read_text().splitlines()))
    assert len(rows) == 12
    assert {float(row["wire_bytes_per_step"]) for row in rows} == {1000, 250}
    display.show(answer, sys.stdout)
    shown = capsys.readouterr().out
    assert shown.startswith("int8 against none: faster and not worse\n"), "the verdict comes first"
    assert "0.6" in shown


def test_what_is_missing_is_said(tmp_path, leave):
    leave_both(tmp_path, 3)
    leave("none", 3, code=1, problem="exit code 1: rank 0 failed")
    answer = analysed(tmp_path)
    assert answer.missing[0] == "none, seed 3: exit code 1: rank 0 failed"
    assert len(answer.missing) == 6
    assert "int8, seed 5: not run" in answer.missing
    assert "underpowered: 3 pairs of runs, 6 are needed" in answer.arms[1].judged.words


def test_nothing_finished_is_no_answer(tmp_path):
    answer = analysed(tmp_path)
    assert len(answer.missing) == 12
    assert answer.arms[1].judged.verdict == "undecided"


def remarks(tmp_path):
    return " ".join(line for line in analysed(tmp_path).not_controlled)


def test_arms_that_start_alike_are_not_remarked(tmp_path):
    leave_both(tmp_path)
    assert "first weights" not in remarks(tmp_path)
    assert "seeds:" not in remarks(tmp_path)


def test_arms_that_start_differently_are(tmp_path):
    leave_both(tmp_path, weights="{arm}{seed}")
    assert "the arms of seed 0 start from different ones" in remarks(tmp_path)


def test_a_script_that_seeds_itself_is_remarked(tmp_path, leave):
    for seed in range(6):
        leave("none", seed, weights="same")
    assert "every seed starts from the same weights" in remarks(tmp_path)


def test_a_run_that_diverges_makes_its_arm_worse(tmp_path):
    leave_both(tmp_path)
    path = runs.folder_of(tmp_path, 2, "int8") / runs.REPORTS
    path.write_text(path.read_text().replace('"step": 100, "seconds"', '"step": 100, "was": 0, "seconds"').replace('"was": 0, ', ""))
    lines = path.read_text().splitlines()
    lines[101] = json.dumps(json.loads(lines[101]) | {"values": {"loss": math.nan}})
    path.write_text("\n".join(lines))
    answer = analysed(tmp_path)
    assert answer.arms[1].judged.words == "faster but worse (1 run diverged)"
    assert [row.seed for row in answer.runs if row.diverged] == [2]
    result.write(answer, tmp_path)
    assert "NaN" not in (tmp_path / "ab.json").read_text()


def test_a_torn_last_line_is_left_out(tmp_path, leave):
    leave("none", 0)
    path = runs.folder_of(tmp_path, 0, "none") / runs.REPORTS
    path.write_text(path.read_text()[:-200])
    assert len(runs.read(path.parent, PLAN).reports) >= 98


def test_a_result_that_is_none_is_refused(tmp_path):
    with pytest.raises(SettingError, match="cannot be read"):
        result.load(tmp_path / "missing.json")


def test_reports_of_epochs_give_the_time_of_a_step(tmp_path, leave):
    leave("none", 0, step_s=0.01)
    path = runs.folder_of(tmp_path, 0, "none") / runs.REPORTS
    job, first, *lines, end = path.read_text().splitlines()
    epochs = [json.dumps(json.loads(line) | {"step": epoch}) for epoch, line in enumerate(lines[9::10], start=1)]
    path.write_text("\n".join([job, first, *epochs, end]))
    run = runs.read(path.parent, PLAN)
    assert np.median(run.blocks) == pytest.approx(0.01)
    assert run.steps == 100


def test_an_arm_that_compressed_nothing_is_named(tmp_path):
    leave_both(tmp_path, wire=1000)
    assert "compression: int8 sent as many bytes a step as none, so it compressed nothing" in remarks(tmp_path)


def test_an_arm_that_compressed_is_not(tmp_path):
    leave_both(tmp_path)
    assert "compressed nothing" not in remarks(tmp_path)
