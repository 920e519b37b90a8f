"""The MPIs at hand."""

import os
import sys
from pathlib import Path


def interpreters() -> dict[str, str]:
    """MPI -> a Python that loads it: ``HVDLITE_TEST_PYTHONS="openmpi=... mpich=..."``, or just this Python."""
    named = os.environ.get("HVDLITE_TEST_PYTHONS", f"this={sys.executable}")
    return dict(pair.split("=", 1) for pair in named.split())


PYTEST = ["-m", "pytest", "-q", "-x", "-o", "tmp_path_retention_count=1000"]
"""What ranks run when they test. None of them may tidy up the folders of the others."""


def own_folders(tmp_path: Path) -> dict[str, str]:
    """Variables for such a job: its ranks' temporary folders lie apart from those of other runs of pytest, which tidy up at any time."""
    return {"PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
