"""What Horovod's tests ask of ``horovod.tensorflow.util``."""

from importlib import import_module


def _executing_eagerly() -> bool:
    """Whether TensorFlow runs operations as they are called."""
    return bool(import_module("tensorflow").executing_eagerly())
