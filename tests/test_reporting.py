"""hvd.report() in one process, and what init() seeds."""

import json

import pytest

import hvdlite
from hvdlite.agreement import check_start


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def start(monkeypatch):
    """Calls init() with these settings."""

    def begin(**variables):
        for name, value in {"TRANSPORT": "local", **variables}.items():
            monkeypatch.setenv(f"HVDLITE_{name}", str(value))
        hvdlite.init()

    yield begin
    hvdlite.shutdown()


def test_outside_of_a_comparison_it_does_nothing(start):
    start()
    hvdlite.report(loss=object())  # type: ignore[arg-type] - not even looked at


def test_before_init_it_is_an_error():
    with pytest.raises(hvdlite.NotInitializedError):
        hvdlite.report(loss=1.0)


def test_reports_are_counted_unless_they_say_the_step(start, tmp_path):
    start(REPORT_FILE=tmp_path / "r.jsonl")
    hvdlite.report(loss=2)
    hvdlite.report(step=40, loss=float("nan"), accuracy=0.5)
    check_start([("w", hvdlite.allreduce([1.0, 2.0], name="w"))], "")
    hvdlite.shutdown()
    job, first, second, weights, end = lines_of(tmp_path / "r.jsonl")
    expected = {"ranks": "1", "nodes": "1", "transport": "local", "MPI": "none", "HVDLITE_TRANSPORT": "local"}
    assert job["job"] | expected == job["job"]
    assert (first["step"], second["step"]) == (1, 40)
    assert first["values"] == {"loss": 2.0}
    assert second["values"]["loss"] != second["values"]["loss"]
    assert 0 <= first["seconds"] <= second["seconds"] <= end["end"]["seconds"]
    assert len(weights["weights"]) == 16


@pytest.mark.parametrize(("limit", "last"), [("steps=3", 3), ("loss<=0.25", 4), ("minutes=0.0000001", 1)])
def test_it_ends_the_script_at_the_limit(start, limit, last):
    start(STOP_AT=limit)
    for i in range(1, last):
        hvdlite.report(loss=1 / i)
    with pytest.raises(SystemExit) as ended:
        hvdlite.report(loss=1 / last)
    assert ended.value.code == 0


SEEDED = """
import random, sys
import numpy as np
{imports}
import hvdlite
from hvdlite.seeding import seed_everything
drawn = []
for seed, rank in ((1, 0), (1, 0), (1, 1), (2, 0)):
    seed_everything(seed, rank)
    drawn.append((random.random(), np.random.rand(), *({more})))
assert drawn[0] == drawn[1]
for other in drawn[2:]:
    assert not set(drawn[0]) & set(other), drawn
"""


@pytest.mark.parametrize(("imports", "more"), [("", "()"), ("import torch", "(torch.rand(1).item(),)")])
def test_a_seed_decides_what_is_drawn_and_ranks_differ(python, imports, more):
    done = python(SEEDED.format(imports=imports, more=more))
    assert done.returncode == 0, done.stderr


def test_init_seeds_only_when_told(python):
    code = "import random, hvdlite\nrandom.seed(0); a = random.random(); random.seed(0)\nhvdlite.init()\nprint(random.random() == a)"
    assert python(code, HVDLITE_TRANSPORT="local").stdout == "True\n"
    assert python(code, HVDLITE_TRANSPORT="local", HVDLITE_SEED="0").stdout == "False\n"
