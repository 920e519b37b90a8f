"""Runs tests/adapters/keras_checks.py: a job of ranks on each backend, since Keras has one a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, environment

pytest.importorskip("keras")

CHECKS = Path(__file__).with_name("keras_checks.py")
LIMIT_S = 400
BACKENDS = sorted(path.stem for path in (ROOT / "hvdlite" / "keras" / "_backends").glob("[!_]*.py"))


def job(backend: str, size: int, *command: str) -> "subprocess.CompletedProcess[str]":
    everything = [sys.executable, "-m", "hvdlite", "run", "-np", str(size), *command]
    variables = environment(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")
    return subprocess.run(everything, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
