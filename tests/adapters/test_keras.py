"""Runs tests/adapters/keras_checks.py: a job of ranks on each backend, since Keras has one a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).with_name("keras_checks.py")
BACKENDS = sorted(path.stem for path in (ROOT / "hvdlite" / "keras" / "_backends").glob("[!_]*.py"))
LIMIT_S = 500


def job(backend: str, size: int, *command: str) -> "subprocess.CompletedProcess[str]":
    variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    whole = [sys.executable, "-m", "hvdlite", "run", "-np", str(size), *command]
    return subprocess.run(
        whole, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize(("backend", "size"), [*((b, n) for b in BACKENDS for n in (2, 3)), ("torch", 1)])
def test_the_laws_hold(backend, size):
    done = job(backend, size, "-m", "pytest", "-q", "-x", str(CHECKS))
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
    done = job(backend, 2, str(script))
    assert done.returncode != 0
    assert "rank 1 has no further batch and rank 0 has one more" in done.stdout, done.stdout[-5000:]
