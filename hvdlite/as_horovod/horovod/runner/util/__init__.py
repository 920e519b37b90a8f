"""What Horovod's tests import of ``horovod.runner.util``."""
