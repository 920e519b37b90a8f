"""``horovod.runner``: its function ``run``."""

from hvdlite import run

__all__ = ["run"]
