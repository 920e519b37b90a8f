"""What scripts and Horovod's tests import of ``horovod.common``."""
