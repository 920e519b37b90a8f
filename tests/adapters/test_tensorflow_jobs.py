"""What ends a program: TensorFlow is absent, or ranks take other numbers of steps."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

UNEVEN = """
import tensorflow as tf
import hvdlite.tensorflow as hvd
hvd.init()
variable = tf.Variable(tf.ones((3, 2)), name="kernel")

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable) * x
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
    variable.assign_sub(0.1 * gradient)

for _ in range(3 if hvd.rank() == 1 else 5):
    step(tf.constant(1.0))
print("ended", flush=True)
"""


def test_without_tensorflow_one_line_says_what_to_do(python):
    done = python("import sys; sys.modules['tensorflow'] = None\nimport hvdlite.tensorflow")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("TensorFlow is not installed, and hvdlite.tensorflow stands on it; tensorflow>=2.16 is expected; pip install tensorflow")


def test_a_rank_with_fewer_batches_ends_the_others_with_the_cause(tmp_path):
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "hvdlite", "run", "-np", "2", "--no-prefix", str(script)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stdout.count("ended") == 1
    assert "rank 1 has finished while rank 0 waits for" in done.stderr
    assert "give every rank the same number of batches" in done.stderr
    assert time.monotonic() - start < 60
