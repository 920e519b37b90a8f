"""The examples run on two ranks; and the demo's compressors do not cost accuracy."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    "torch_mnist": (["--epochs", "1", "--batch-size", "200"], "loss.png", r"none .* \d+\.\d % .* 1\.0x"),
    "torch_charlm": (["--steps", "12", "--batch-size", "2", "--length", "8"], "charlm.png", r"none .* \d\.\d{3} .* 1\.0x"),
}


def run(example, output, *options):
    """What the example prints, progress bars aside."""
    command = [sys.executable, "-m", "hvdlite", "run", "-np", "2", f"examples/{example}.py", "--output", str(output), *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_a_table_and_draws_a_picture(example, tmp_path):
    options, picture, plain_row = EXAMPLES[example]
    printed = run(example, tmp_path, "--compression", "none", "powersgd:rank=4", *options)
    assert re.search(plain_row, printed)
    ratio = re.search(r"powersgd:rank=4 .* (\d+\.\d)x", printed)
    assert ratio
    assert float(ratio[1]) > 5
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


KERAS_EXAMPLES = {
    "keras_mnist": (["--epochs", "1", "--compression", "none", "powersgd:rank=4"], r"powersgd:rank=4 +(\d+\.\d) % .* \d+\.\dx compressed", 60),
    "keras_torch_backend": (["--epochs", "4", "--save", "spirals.keras"], r"(\d+\.\d) % from spirals\.keras", 80),
}


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
@pytest.mark.parametrize("example", KERAS_EXAMPLES)
def test_an_example_of_keras_learns(example, tmp_path):
    """On the torch backend, which starts fastest; tests/adapters/test_keras.py is about all of them."""
    options, result, percent = KERAS_EXAMPLES[example]
    command = [sys.executable, "-m", "hvdlite", "run", "-np", "2", str(ROOT / "examples" / f"{example}.py"), *options]
    variables = {"KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    found = re.search(result, done.stdout)
    assert found, done.stdout[-2000:]
    assert float(found[1]) > percent


def test_the_folder_of_examples_is_the_list():
    assert {path.stem for path in (ROOT / "examples").glob("torch_*.py")} == {*EXAMPLES, "torch_elastic"}
    assert {path.stem for path in (ROOT / "examples").glob("keras_*.py")} == set(KERAS_EXAMPLES)


def test_the_elastic_example_survives_the_loss_of_a_rank():
    command = [sys.executable, "-m", "hvdlite", "run", "-np", "2", "--min-np", "1", "examples/torch_elastic.py", "--epochs", "40"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        pids = {}
        while len(pids) < 2:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            pids |= {rank: int(pid) for pid, rank in re.findall(r"pid (\d+) is rank (\d)", line)}
        time.sleep(1)
        os.kill(pids["1"], signal.SIGKILL)
        printed, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert "was killed by SIGKILL" in said
    begun = re.search(r"is rank 0 of 2: epoch (\d+), (\d+) samples of it done", printed)
    assert begun
    assert int(begun[1]) + int(begun[2]) > 0, "it began anew"
    found = re.search(r"40 epochs on 2 ranks: (\d+\.\d) % right", printed)
    assert found
    assert float(found[1]) > 90


def test_the_tensorflow_example_learns_and_compresses():
    command = [sys.executable, "-m", "hvdlite", "run", "-np", "2", "examples/tensorflow2_mnist.py", "--epochs", "2", "--batch-size", "16"]
    done = subprocess.run([*command, "--compression", "none", "powersgd:rank=4"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = {spec: (float(a), float(r)) for spec, a, r in re.findall(r"(\S+): test accuracy (\d+\.\d) %.* ratio (\d+\.\d)x", done.stdout)}
    assert found.keys() == {"none", "powersgd:rank=4"}
    assert found["none"][0] > 90
    assert found["powersgd:rank=4"][0] > found["none"][0] - 2
    assert found["powersgd:rank=4"][1] > 5


DRIVER = """
import argparse, json, sys
sys.path.insert(0, sys.argv[1])
import hvdlite.torch as hvd
import torch_mnist
hvd.init()
data = torch_mnist.load_digits()
for compression in json.loads(sys.argv[2]):
    runs = [torch_mnist.train(argparse.Namespace(model="cnn", seed=s, epochs=2, batch_size=16, lr=0.02), compression, *data) for s in range(3)]
    if hvd.rank() == 0:
        print("RESULT", compression, sum(run["accuracy_percent"] for run in runs) / 3, flush=True)
"""


def test_compression_does_not_cost_the_demo_a_point_of_accuracy(tmp_path):
    """Mean over three seeds, on 1,000 test digits, against no compression from the same first weights and batches."""
    script = tmp_path / "accuracy.py"
    script.write_text(DRIVER)
    specs = ["none", "powersgd:rank=4", "topk:density=0.01", "int8"]
    command = [sys.executable, "-m", "hvdlite", "run", "-np", "2", str(script), str(ROOT / "examples"), json.dumps(specs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    accuracy = {spec: float(percent) for spec, percent in re.findall(r"RESULT (\S+) (\S+)", done.stdout)}
    assert accuracy.keys() == set(specs)
    assert accuracy["none"] > 90
    for spec in specs:
        assert accuracy[spec] >= accuracy["none"] - 1, accuracy
