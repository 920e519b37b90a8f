"""What Horovod's tests import of ``horovod.runner.common.util``."""
