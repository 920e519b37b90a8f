"""hvdlite under the name horovod."""

from hvdlite import run

__all__ = ["__version__", "run"]

__version__ = "0.28.1"
"""The release of Horovod whose API this is."""
