"""``hvdlite predict`` from end to end, on two ranks and without a framework."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.predict import measured
from hvdlite.telemetry.steps import WARM_UP_STEPS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import numpy as np
import hvdlite as hvd

hvd.init()
shapes = {"w": (256, 128), "b": (128,)}
buckets = hvd.GradientBuckets(hvd.world(), "w", [hvd.Parameter(n, s, "float32") for n, s in shapes.items()], None)
for step in range(int(sys.argv[1])):
    for name in reversed(shapes):
        for _ in range(20):
            np.ones((64, 64)) @ np.ones((64, 64))
        buckets.view(name)[...] = 1 + hvd.rank()
        buckets.mark_ready(name)
    buckets.finish()
    assert (buckets.view("w") == 1.5).all(), "measuring changes no gradient"
"""
STEPS = 16


@pytest.fixture(scope="module")
def predict(tmp_path_factory):
    """Calls ``hvdlite predict`` in one folder; exit code, output and errors."""
    folder = tmp_path_factory.mktemp("predict")
    (folder / "train.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(*words):
        line = [sys.executable, "-m", "hvdlite", "predict", *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    call.folder = folder
    return call


@pytest.fixture(scope="module")
def answered(predict):
    options = ["-np", 2, "--arms", "int8", "--steps", STEPS, "--keep", "kept.json", "--json", "answer.json"]
    return predict(*options, "--", "python", "train.py", 100_000)


def test_a_forecast_of_a_real_script(answered, predict):
    code, out, err = answered
    assert code == 0, err
    assert [line for line in err.splitlines() if " of 3: " in line] == err.splitlines()
    assert "2 ranks on 1 host:" in out
    assert "ceiling: " in out
    answer = json.loads((predict.folder / "answer.json").read_text())
    (found,) = answer["forecasts"]
    assert [arm["arm"] for arm in found["arms"]] == ["none", "fp16", "int8"]
    assert found["where"] == "2 ranks on 1 host"
    assert 0 < found["computed_ms"] <= found["ceiling_ms"]
    for arm in found["arms"]:
        assert 0 < arm["step_ms"]["low"] <= arm["step_ms"]["middle"] <= arm["step_ms"]["high"]
        assert arm["ratio"]["low"] <= arm["ratio"]["middle"] <= arm["ratio"]["high"]
    assert found["arms"][0]["wire_bytes"] == 4 * (256 * 128 + 128)
    assert found["arms"][2]["wire_bytes"] == 128 * 256 + 4 * 128 + 4 * 128, "a byte an entry, a scale for 256, and what is not compressed"
    assert found["recommendation"]


def test_what_was_measured(answered, predict):
    kept = measured.load(predict.folder / "kept.json")
    assert kept.size == 2
    assert [p[:2] for p in kept.ranks[0].parameters] == [("b", (128,)), ("w", (256, 128))], "in the order in which they become ready"
    for held in (True, False):
        assert len(kept.steps(held=held)) == STEPS // 2 * 3 // 4, "the first of each block does not count"
        for step in kept.steps(held=held):
            for rank in step:
                assert rank.ready["b"] < rank.ready["w"] <= rank.computed <= rank.ended
    assert kept.memory is not None
    assert len(kept.memory.rounds) == len(kept.network.busy_rounds) > 10


def test_other_places_without_measuring_again(answered, predict):
    code, out, err = predict("--from", "kept.json", "--link", "10mbit", "--link", "1gbit,delay=2ms")
    assert (code, err) == (0, "")
    assert "2 ranks on 2 hosts, 10mbit:" in out
    assert "2 ranks on 2 hosts, 1gbit,delay=2ms:" in out
    assert 'HVDLITE_COMPRESSION=int8 (or compression="int8")' in out
    code, _, err = predict("--from", "kept.json", "--link", "1gbit", "--ranks", 64, "--hosts", 4)
    assert code == 2
    assert "fp16 was not timed for 4 ranks in an exchange, but for 2" in err
    assert "measure again" in err


def test_an_ab_is_compared_with_its_forecast(answered, predict):
    plan = {"command": ["python", "train.py"], "arms": ["none", "int8"], "seeds": 1, "size": 2}
    empty = dict.fromkeys(("metric_mean", "metric_sd", "wire_bytes_per_step", "exposed_ms_per_step", "num_reached", "target_seconds", "judged"))
    arms = [{"arm": arm, "num_planned": 1, "num_good": 1, "step_ms": ms, **empty} for arm, ms in (("none", 1.0), ("int8", 1000.0))]
    ab = {"version": "1", "machine": {}, "plan": plan, "margin": 0, "target": None, "arms": arms, "runs": [], "missing": [], "not_controlled": []}
    (predict.folder / "ab.json").write_text(json.dumps(ab))
    code, out, err = predict("--audit", "ab.json", "--from", "kept.json", "--json", "audit.json")
    assert (code, err) == (0, "")
    assert "int8: forecast" in out
    assert "measured 1000 (" in out
    assert json.loads((predict.folder / "audit.json").read_text())["audit"]["num_signs"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "python", "train.py", "9"], "-np is missing"),
        (["-np", "1", "--", "python", "train.py", "9"], "-np 1 exchanges no gradients; at least 2 ranks"),
        (["-np", "2", "--arms", "zip", "--", "python", "train.py", "9"], "unknown compressor 'zip'"),
        (["-np", "2", "--link", "fast", "--", "python", "train.py", "9"], "link 'fast' cannot be read"),
        (["-np", "2", "--link", "1gbit", "--hosts", "1", "--", "python", "train.py", "9"], "ranks of one host use no link"),
        (["-np", "2", "--ranks", "7", "--hosts", "2", "--", "python", "train.py", "9"], "7 ranks cannot be dealt evenly to 2 hosts"),
        (["-np", "2", "--", "python", "absent.py"], "absent.py"),
        (["--from", "absent.json"], "'absent.json' cannot be read"),
        (["--from", "train.py", "-np", "2"], "what was measured is either kept or measured now"),
        (["--audit", "absent.json"], "'absent.json' cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(predict, words, said):
    code, out, err = predict(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_script_that_ends_too_early_is_named(predict):
    code, out, err = predict("-np", 2, "--steps", STEPS, "--", "python", "train.py", WARM_UP_STEPS + STEPS - 1)
    assert (code, out) == (1, "")
    assert f"the script ended before {WARM_UP_STEPS + STEPS} steps of an optimizer of hvdlite's on 2 ranks" in err


def test_a_script_that_fails_is_quoted(predict):
    code, out, err = predict("-np", 2, "--", "python", "train.py", "many")
    assert (code, out) == (1, "")
    assert "the script job ended with exit code 1" in err
    assert "invalid literal for int() with base 10: 'many'" in err
