import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from _jobs import JobError, Plan
from _report import amount, markdown, short, spread
from _simulated import Offer, first_round, known_round
from _timing import alternated_ms, there_and_back
from keras_callback import AGAIN, BARE, CPU, WALL, WITH, over_bare
from keras_callback import table as keras_table
from negotiation import forecast
from tensorflow_training import table as tensorflow_table
from training import LOCAL, Run, parsed

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_every_other_round_runs_backwards():
    assert list(there_and_back("ab", 3)) == ["a", "b", "b", "a", "a", "b"]


def test_every_action_is_timed_once_a_round_and_all_ranks_agree_on_the_number_of_calls():
    calls = {"a": 0, "b": 0}

    def count(name):
        calls[name] += 1

    found = alternated_ms({name: lambda name=name: count(name) for name in calls}, 3, 1.0, agreed=lambda mine: 0.25)
    assert calls == {"a": 2 + 3 * 4, "b": 2 + 3 * 4}
    assert found == {"a": [250.0] * 3, "b": [250.0] * 3}


def test_tables_line_up_and_figures_have_no_exponent():
    assert markdown([["a", "long"], ["wide", "b"]]) == ["| a    | long |", "|------|------|", "| wide | b    |"]
    assert [short(x) for x in (12345.6, 12.345, 0.012345)] == ["12,346", "12.3", "0.0123"]
    assert spread([3, 1, 2]) == "2 (1-3)"
    assert [amount(4096), amount(256 << 20), amount(3 << 30)] == ["4 KiB", "256 MiB", "3 GiB"]


def test_a_part_that_fails_costs_the_others_nothing_and_the_exit_code_tells(capsys):
    plan, ran = Plan("some", 2), []
    with plan.part("first"):
        raise JobError("broken")
    with plan.part("second"):
        ran.append("second")
    assert ran == ["second"]
    with pytest.raises(SystemExit, match="first"):
        plan.end()
    assert "part 2 of 2" in capsys.readouterr().err


def test_runs_are_written_as_they_are_read():
    assert [str(parsed(text)) for text in ("mlp@local:2", "small-mlp@2.5gbit:4")] == ["mlp@local:2", "small-mlp@2.5gbit:4"]
    with pytest.raises(argparse.ArgumentTypeError, match="MODEL@PLACE:RANKS"):
        parsed("mlp@fast:2")


def test_the_wire_takes_its_bytes_at_the_rate_of_the_line():
    found = {"forward_ms": [10.0], "step_bytes": {"none": 25e6}}
    assert Run("mlp", "100mbit", 2, found).wire_ms == pytest.approx(10 + 2000)
    assert Run("mlp", LOCAL, 2, found).wire_ms is None


@pytest.mark.parametrize("ranks", [2, 70])
def test_played_rounds_agree_and_know_their_bytes(ranks):
    offers = [Offer(f"bucket.{number}") for number in range(3)]
    new, negotiator = first_round(ranks, offers)
    known = known_round(ranks, negotiator, offers)
    words = 1 + 2 * -(-ranks // 64) + 3  # news, who is leaving, who has joined, and three planes of one word
    assert known.sent_bytes == round(2 * (ranks - 1) / ranks * 8 * words)
    assert new.sent_bytes > known.sent_bytes


def test_a_forecast_of_the_measured_ranks_is_the_measurement():
    played = {ranks: {"cpu_ms": 0.2, "single_cpu_ms": 0.2} for ranks in (2, 1024)}
    expected = forecast({"ranks": {2: {"round_ms": [0.5]}}, "played": played})
    assert expected == {2: pytest.approx(0.5), 1024: pytest.approx(0.2 + 10 * 0.3)}


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    done = subprocess.run([sys.executable, str(BENCHMARKS / "run.py"), "trainign"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "trainign is no benchmark; choose of collectives" in done.stderr


def test_steps_of_tensorflow_are_compared_with_the_strategy_and_with_one_process():
    run = parsed("mlp@local:2")
    run.found = {
        "step_ms": {"one process": [20.0], "none": [30.0, 25.0, 35.0], "MultiWorkerMirroredStrategy": [60.0]},
        "forward_ms": [5.0], "step_bytes": {"none": 4e6}, "batch": 64,
    }  # fmt: skip
    _, alone, ours, theirs = tensorflow_table([run])
    assert alone == ["mlp", "one host, 2 ranks", "one process", "20 (20-20)", "3,200", "", "1x", ""]
    assert ours == ["mlp", "one host, 2 ranks", "hvdlite none", "30 (25-35)", "4,267", "2.00x", "1.33x", "4"]
    assert theirs[2:] == ["MultiWorkerMirroredStrategy", "60 (60-60)", "2,133", "1.00x", "0.667x", ""]


def test_the_callback_is_compared_round_by_round_so_that_drift_falls_on_both():
    arms = {BARE: [10.0, 20.0, 40.0], WITH: [10.2, 20.4, 44.0], AGAIN: [10.0, 19.0, 40.0]}
    assert over_bare(arms, WITH) == pytest.approx(2.0)
    assert over_bare(arms, AGAIN) == pytest.approx(0.0)
    cpu = {BARE: [10.0], WITH: [9.9], AGAIN: [10.1]}
    table = keras_table({"jax": {WALL: arms, CPU: cpu}})
    assert [(row[3], row[5]) for row in table] == [("over fit", "over fit"), ("", ""), ("+2.0 %", "-1.0 %"), ("+0.0 %", "+1.0 %")]
