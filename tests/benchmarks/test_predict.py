"""What the forecasts' benchmarks count."""

import subprocess
import sys
from pathlib import Path

import pytest
from predict_accuracy import in_words, summary, undisturbed

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEAD = "model,mode,workers,link,backend,method,ratio,memory,collective,samples_per_s,bytes_per_step"


def row(right, clear, error, *, inside=True, verdict="faster"):
    return {"right": right, "clear": clear, "error": error, "inside": inside, "verdict": verdict}


def test_signs_are_counted_where_there_are_any():
    rows = [row(None, None, 0.1), row(True, True, -0.3, inside=False), row(False, False, 0.2, verdict="no telling"), row(True, True, 0.0)]
    found = summary(rows)
    assert (found["signs_right"], found["signs"]) == (2, 3)
    assert (found["clear_signs_right"], found["clear_signs"]) == (2, 2)
    assert (found["sure_signs_right"], found["sure_signs"]) == (2, 2)
    assert (found["inside"], found["steps"]) == (3, 4)
    assert found["median_error"] == pytest.approx(0.15)
    assert found["worst_error"] == -0.3
    assert "median error 15.0%, worst -30%" in in_words(found)[0]


def test_what_was_disturbed_is_thrown_away(tmp_path):
    path, shares = tmp_path / "x.json", [0.5, 0.01]

    def make(path):
        path.touch()
        return shares.pop(0)

    assert undisturbed(make, path)
    assert path.exists()
    shares[:] = [0.5, 0.5]
    assert not undisturbed(make, path)
    assert not path.exists()


def test_the_back_test_reads_a_table(tmp_path):
    lines = [HEAD, "net,throughput,1,10g,mpi,none,,,allreduce,1,"]
    for method, fast, slow, size in (("none", 4 / 1.5, 4 / 6, 100), ("quarter", 4 / 1.5, 4 / 2.625, 25)):
        lines += [f"net,throughput,8,{link},mpi,{method},,,allreduce,{2 * speed},{''}" for link, speed in (("10g", fast), ("1g", slow))]
        lines.append(f"net,data-volume,8,10g,mpi,{method},,,allreduce,,{size}")
    (tmp_path / "runs.csv").write_text("\n".join(lines))

    def run(*words):
        script = str(BENCHMARKS / "predict_backtest.py")
        return subprocess.run([sys.executable, script, str(tmp_path / "runs.csv"), *words], capture_output=True, text=True, check=False)

    done = run("net")
    assert done.stdout == "net: faster or slower right in 1 of 1, median error of the time 0.0 %\n", done.stderr
    done = run("absent")
    assert done.returncode == 1
    assert "the models of the file are net" in done.stderr
