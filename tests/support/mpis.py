"""The MPIs at hand."""

import os
import sys


def interpreters() -> dict[str, str]:
    """MPI -> a Python that loads it: ``HVDLITE_TEST_PYTHONS="openmpi=... mpich=..."``, or just this Python."""
    named = os.environ.get("HVDLITE_TEST_PYTHONS", f"this={sys.executable}")
    return dict(pair.split("=", 1) for pair in named.split())
