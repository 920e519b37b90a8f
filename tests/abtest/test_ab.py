"""``hvdlite ab`` from end to end, on two ranks and without a framework."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdlite.abtest.plan import Plan, begin

pytest.importorskip("scipy")
pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("tensorboardX")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, sys, time
import numpy as np
import hvdlite as hvd

hvd.init()
arm, seed = os.environ["HVDLITE_COMPRESSION"], os.environ["HVDLITE_SEED"]
assert sys.argv[1] == seed
if arm == "int8" and seed == "1" and os.path.exists("crash"):
    raise RuntimeError("planted")
w = np.random.default_rng(int(seed)).normal(size=(64, 64)).astype(np.float32)
buckets = hvd.GradientBuckets(hvd.world(), "w", [hvd.Parameter("w", w.shape, "float32")], hvd.as_compressor(arm))
for step in range(40):
    buckets.view("w")[...] = w + hvd.rank() - 0.5
    buckets.mark_ready("w")
    buckets.finish()
    w -= 0.1 * buckets.view("w")
    if os.path.exists("silent"):
        continue
    hvd.report(loss=np.square(w).mean())
    if os.path.exists("slow"):
        open("reached." + arm, "w").close()
        time.sleep(0.25)
print(f"final loss = {np.square(w).mean():.4f}")
"""


@pytest.fixture
def ab(tmp_path):
    """Calls or starts ``hvdlite ab`` on the script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def start(*options, seeds=2):
        words = [
            sys.executable,
            "-m",
            "hvdlite",
            "ab",
            *(() if "--arms" in options else ("--arms", "none,int8")),
            "--no-baselines",
            "--seeds",
            str(seeds),
            "-np",
            "2",
            "--output",
            "out",
            *options,
        ]
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [*words, "--", "python", "train.py", "{seed}"]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def ended(process, limit=60):
    out, err = process.communicate(timeout=limit)
    return process.returncode, out, err


def test_a_crash_in_one_arm_then_resume(ab, tmp_path):
    (tmp_path / "crash").touch()
    code, out, err = ended(ab())
    assert code == 1, err
    assert "missing: int8, seed 1: exit code 1: rank " in out
    assert "RuntimeError: planted" in out
    page = (tmp_path / "out" / "ab.html").read_text()
    assert "1 of 4 runs are missing" in page
    assert "int8, seed 1: exit code 1: rank " in page
    assert len(err.splitlines()) == 4
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("out/runs/*/run.json")}
    assert len(kept) == 4

    code, _, err = ended(ab())
    assert (code, len(err.splitlines())) == (2, 1), "an answer is not overwritten"
    code, _, err = ended(ab("--resume", seeds=3))
    assert code == 2
    assert "--resume with another seeds: 3, where the finished runs had 2" in err

    (tmp_path / "crash").unlink()
    code, out, err = ended(ab("--resume"))
    assert code == 0, err
    assert err.count("kept from before") == 3
    assert out.startswith("int8 against none: undecided (underpowered: 2 pairs of runs, 6 are needed)")
    assert sum(p.stat().st_mtime_ns == then for p, then in kept.items()) == 3
    answer = json.loads((tmp_path / "out" / "ab.json").read_text())
    none, int8 = answer["arms"]
    assert none["wire_bytes_per_step"] > 2 * int8["wire_bytes_per_step"] > 0
    assert {run["steps"] for run in answer["runs"]} == {40}
    assert [run["arm"] for run in answer["runs"]] == ["none", "int8", "int8", "none"]
    assert none["judged"] is None
    assert int8["judged"]["underpowered"]

    page = tmp_path / "out" / "ab.html"
    before = page.read_text()
    assert "are missing" not in before
    assert "shared_memory" in before, "the ranks told where they ran"
    page.unlink()

    def again(*words):
        command = [sys.executable, "-m", "hvdlite", "ab", *words]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done

    done = again("--report", "out")
    assert done.stdout.startswith("int8 against none: undecided")
    assert page.read_text() == before
    done = again("--compare", "out/ab.json", "out/ab.json")
    assert "int8: undecided in both; step time " in done.stdout
    assert done.stdout.count("int8 against none: undecided") == 2
    assert "they differ" not in done.stdout


def test_ctrl_c_keeps_what_has_ended(ab, tmp_path):
    (tmp_path / "slow").touch()
    process = ab("--steps", "3")
    deadline = time.monotonic() + 40
    while not (tmp_path / "reached.int8").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    code, out, err = ended(process)
    assert time.monotonic() - began < 10
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert "interrupted; 1 of 4 runs are kept in out; the same command line with --resume goes on" in err
    assert [p.parent.name for p in tmp_path.glob("out/runs/*/run.json")] == ["seed0.none"]
    answer = json.loads((tmp_path / "out" / "ab.json").read_text())
    assert [run["steps"] for run in answer["runs"]] == [3], "--steps ended the script"
    page = (tmp_path / "out" / "ab.html").read_text()
    assert "3 of 4 runs are missing" in page
    assert "int8, seeds 0, 1: not run" in page


def test_a_script_that_reports_nothing_and_the_regex(ab, tmp_path):
    (tmp_path / "silent").touch()
    code, out, _ = ended(ab(seeds=1))
    assert code == 1
    assert out.count("no metric 'loss' was reported, but nothing; hvd.report(loss=...) is expected at least once") == 2
    assert (tmp_path / "out" / "ab.html").read_text().count("no metric &#39;loss&#39; was reported") == 4, "each in the list, and in the table"
    code, out, err = ended(ab("--metric-regex", r"final loss = (\S+)", "--output", "other", seeds=1))
    assert code == 0, out + err
    answer = json.loads((tmp_path / "other" / "ab.json").read_text())
    assert all(run["metric"] < 1 and run["step_ms"] > 0 and run["steps"] == 40 for run in answer["runs"])


def test_one_exact_run_with_candidates_beside_it_that_ends_after_some_minutes(ab, tmp_path):
    (tmp_path / "slow").touch()
    code, out, err = ended(ab("--mode", "shadow", "--minutes", "0.02", "--arms", "none,topk:density=0.1,fp16", seeds=1))
    assert code == 0, err
    assert out.index("fp16") < out.index("topk:density=0.1"), "the nearest first"
    answer = json.loads((tmp_path / "out" / "ab.json").read_text())
    (run,) = answer["runs"]
    assert run["arm"] == "none"
    assert 4 <= run["steps"] < 40, "ended by --minutes"
    assert [played["arm"] for played in answer["ranking"]] == ["fp16", "topk:density=0.1"]
    assert 0 < answer["ranking"][0]["vnmse"] < 1e-5 < answer["ranking"][1]["vnmse"]
    curves = {(curve["arm"], curve["metric"]): curve for curve in answer["fidelity"]}
    assert curves["fp16", "vNMSE"]["steps"] == list(range(1, run["steps"] + 1))
    assert curves["topk:density=0.1", "residual over gradient"]["values"][-1] > 0
    none, topk, fp16 = (arm["wire_bytes_per_step"] for arm in answer["arms"])
    assert none == 64 * 64 * 4
    assert topk < fp16 < none
    assert answer["warnings"] == []


def test_arms_that_part_at_a_step(ab, tmp_path):
    code, out, err = ended(ab("--mode", "fork", "--fork-at", "25", seeds=1))
    assert code == 0, err
    assert "weights at the fork: not known" in out, "the script has no optimizer of ours"
    answer = json.loads((tmp_path / "out" / "ab.json").read_text())
    none, int8 = (arm["wire_bytes_per_step"] for arm in answer["arms"])
    assert 2 * int8 < none == 64 * 64 * 4, "counted from the fork on"
    losses = {
        path.parent.name: [json.loads(line)["values"]["loss"] for line in path.read_text().splitlines() if "values" in line]
        for path in tmp_path.glob("out/runs/*/report.jsonl")
    }
    same = [a == b for a, b in zip(losses["seed0.none"], losses["seed0.int8"], strict=True)]
    assert same == [True] * 25 + [False] * 15


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-np", "2", "train.py"], "--arms is missing"),
        (["--arms", "int8", "-np", "1", "train.py"], "-np 1 exchanges no gradients"),
        (["--arms", "int8", "train.py"], "-np is missing"),
        (["--arms", "int8", "-np", "2"], "nothing to run is given"),
        (["--arms", "int8", "-np", "2", "missing.py"], "script 'missing.py' does not exist"),
        (["--arms", "nosuch", "-np", "2", "train.py"], "unknown compressor 'nosuch'"),
        (["--arms", "int8", "-np", "2", "--steps", "3", "--minutes", "1", "train.py"], "more than one of --steps, --minutes and --until"),
        (["--arms", "int8", "-np", "2", "--until", "loss", "train.py"], "--until 'loss' cannot be read"),
        (["--arms", "int8", "-np", "2", "--metric-regex", "loss", "train.py"], "has 0 groups; one is expected"),
        (["--compare", "a.json", "b.json"], "cannot be read"),
        (["--arms", "int8", "-np", "2", "--hosts", "2", "train.py"], "--hosts 2 stands alone"),
        (["--arms", "int8", "-np", "2", "--link", "1gbit", "--hosts", "3", "train.py"], "3 hosts for 2 ranks"),
        (["--arms", "int8", "-np", "2", "--link", "1gbps", "train.py"], "link '1gbps' cannot be read"),
        (["--arms", "int8", "-np", "2", "--mode", "fork", "train.py"], "--fork-at is missing"),
        (["--arms", "int8", "-np", "2", "--mode", "fork", "--fork-at", "9", "--steps", "9", "train.py"], "--steps 9 ends each run before the fork"),
        (["--arms", "int8", "-np", "2", "--shadow-every", "2", "train.py"], "--shadow-every 2 means nothing in --mode full"),
        (["--arms", "int8,fp16", "-np", "2", "--no-baselines", "--mode", "shadow", "train.py"], "none is not among the arms"),
        (["--report", "a.json"], "cannot be read"),
        (["--tensorboard", ".", "--arms", "int8", "-np", "2", "train.py"], "--tensorboard '.' is not empty"),
    ],
)
def test_usage_errors_are_one_line(tmp_path, monkeypatch, words, reason):
    from click.testing import CliRunner

    from hvdlite.cli.ab import command
    from hvdlite.errors import SettingError

    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=re.escape(reason)) as caught:
        CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "hvdlite-ab").exists()


def test_until_names_the_metric_and_its_direction(tmp_path, monkeypatch):
    from hvdlite.cli.ab import _until

    assert _until("loss=0.1", False) == ("loss", "loss<=0.1")
    assert _until("accuracy=90", True) == ("accuracy", "accuracy>=90")


def test_a_result_that_cannot_be_kept_ends_the_comparison(tmp_path, monkeypatch):
    """A full disk: what was kept before is still there, and the reason is one line."""
    from hvdlite.abtest import files, runner
    from hvdlite.abtest.display import Progress
    from hvdlite.errors import HvdliteError

    plan = Plan(("true",), ("none", "int8"), 1, 2)
    begin(plan, tmp_path / "out", resume=False)
    monkeypatch.setattr(runner, "_run_one", lambda plan, seed, arm, here, progress: runner.Record(arm, seed, 1, "", 0.1, "planted"))
    keep, kept = files.os.replace, []

    def until_full(source, target):
        if kept:
            raise OSError(28, "No space left on device")
        kept.append(target)
        keep(source, target)

    monkeypatch.setattr(files.os, "replace", until_full)
    with pytest.raises(HvdliteError, match=r"No space left on device.*go on with --resume"), Progress(plan, sys.stderr) as progress:
        runner.run_all(plan, tmp_path / "out", progress)
    assert [run.record.arm for run in runner.finished(plan, tmp_path / "out")] == ["none"]
    assert not list(tmp_path.rglob("*.new")), "half a file is taken away"


def test_a_run_that_cannot_begin_ends_the_comparison_in_words(tmp_path, monkeypatch):
    """A full disk before the run, where its folder or the launcher's output cannot be made."""
    from hvdlite.abtest import runner
    from hvdlite.abtest.display import Progress
    from hvdlite.errors import HvdliteError

    plan = Plan(("true",), ("none", "int8"), 1, 2)
    begin(plan, tmp_path / "out", resume=False)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(HvdliteError, match=r"cannot write .*seed0.none .*finished runs are kept"), Progress(plan, sys.stderr) as progress:
        runner.run_all(plan, tmp_path / "out", progress)
