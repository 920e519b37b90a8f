"""Runs tests/adapters/keras_checks.py: a job of ranks on each backend, since Keras has one a process."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mpis import PYTEST, own_folders

if find_spec("keras") is None:  # importing it here would load TensorFlow into every run of pytest
    pytest.skip("Keras is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).with_name("keras_checks.py")
BACKENDS = sorted(path.stem for path in (ROOT / "hvdlite" / "keras" / "_backends").glob("[!_]*.py"))
LIMIT_S = 500
FAULT_LIMIT_S = 90


def job(backend: str, size: int, *command: str, limit_s: float = LIMIT_S, **more: str) -> "subprocess.CompletedProcess[str]":
    variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    whole = [sys.executable, "-m", "hvdlite", "run", "-np", str(size), *command]
    return subprocess.run(
        whole, cwd=ROOT, env=os.environ | variables | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_laws_hold_on_two_ranks(backend, tmp_path):
    done = job(backend, 2, *PYTEST, str(CHECKS), **own_folders(tmp_path))
    assert done.returncode == 0, done.stdout[-20000:]
    assert done.stdout.count(" passed") >= 2, done.stdout[-3000:]


@pytest.mark.parametrize(("backend", "size"), [*((backend, 3) for backend in BACKENDS), ("torch", 1)])
def test_the_sums_are_right_on_other_numbers_of_ranks(backend, size, tmp_path):
    done = job(backend, size, *PYTEST, str(CHECKS), "-k", "whole_batch or together or one_callback or overflow", **own_folders(tmp_path))
    assert done.returncode == 0, done.stdout[-20000:]
    assert done.stdout.count(" passed") >= size, done.stdout[-3000:]


UNEVEN = """
import keras, numpy as np
import hvdlite.keras as hvd
hvd.init()
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")

def batches():
    for _ in range(5 - hvd.rank()):
        yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

model.fit(batches(), epochs=1, verbose=0, callbacks=[hvd.DataParallel()])
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_runs_out_of_batches_ends_the_job_with_the_cause(backend, tmp_path):
    """``fit`` does not know how many a generator has: the ranks find out when one is at its end."""
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    done = job(backend, 2, str(script), limit_s=FAULT_LIMIT_S)
    assert done.returncode != 0
    assert "rank 1 has no further batch and rank 0 has one more" in done.stdout, done.stdout[-5000:]


def test_the_programs_of_the_documentation_run(tmp_path):
    text = (ROOT / "docs" / "keras.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 2
    script = tmp_path / "documentation.py"
    script.write_text("\n".join([*programs, "print('DONE', hvd.rank())"]))
    done = job("torch", 2, "--no-prefix", str(script))
    assert done.returncode == 0, done.stdout[-5000:]
    assert {"DONE 0", "DONE 1"} <= set(done.stdout.splitlines())


@pytest.mark.parametrize(("missing", "backend"), [("keras", "torch"), ("jax", "jax")])
def test_what_is_missing_is_named_with_the_remedy(missing, backend, python):
    done = python(f"import sys; sys.modules[{missing!r}] = None\nimport hvdlite.keras", KERAS_BACKEND=backend)
    assert done.returncode != 0
    assert f"MissingDependencyError: {missing} is not installed, and hvdlite.keras stands on" in done.stderr
    assert "pip install keras and tensorflow, torch or jax" in done.stderr
