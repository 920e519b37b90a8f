"""These run in jobs of their own, so that others do not wait for the import of TensorFlow."""

import pytest
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)  # a wait must never take the thread that a hand-over needs


@pytest.fixture
def odd(rank: int, size: int) -> bool:
    """Whether this rank, the last one, does it differently. Tests that ask this run on several ranks only."""
    return rank == size - 1


@pytest.fixture(params=["eager", "graph"])
def run_as(request):
    """Runs a step as it is, or compiled."""
    return tf.function if request.param == "graph" else lambda step: step
