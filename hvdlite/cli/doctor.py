"""``hvdlite doctor``: what is installed, does it fit together, and do two ranks really talk to each other?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

import click

from .. import __version__
from ..errors import HvdliteError

_PACKAGES = ("numpy", "mpi4py", "ml_dtypes", "msgspec", "click", "psutil", "torch", "tensorflow", "keras", "nccl4py")
_CHECK_SECONDS = 90


@click.command("doctor", short_help="Check the installation, and report it.")
def command() -> int:
    """Print a report to copy into a question, and check that two ranks can talk. The exit code is 0 if all is well."""
    for line in _facts():
        click.echo(line)
    problems = [problem for check in (_mpi, _two_ranks) for problem in check()]
    for problem in problems:
        click.echo(f"PROBLEM      {problem}")
    click.echo("result       " + ("all is well" if not problems else f"{len(problems)} problem{'s' * (len(problems) > 1)}, see above"))
    return 1 if problems else 0


def _facts() -> Iterator[str]:
    import psutil  # type: ignore[import-untyped]

    from ..compression import names

    yield f"hvdlite      {__version__}"
    yield f"python       {platform.python_version()}, {sys.executable}"
    yield f"system       {platform.platform()}"
    yield f"cores        {len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"
    memory = psutil.virtual_memory()
    yield f"memory       {memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}{_shared_memory()}"
    yield f"packages     {', '.join(f'{name} {_version(name)}' for name in _PACKAGES)}"
    yield f"compressors  {', '.join(names())}"
    yield f"kernels      {'compiled' if find_spec('hvdlite._kernels') else 'none: no compiler was there at installation, numpy does the work'}"


def _shared_memory() -> str:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return ""
    return f"; /dev/shm {shm.f_bavail * shm.f_frsize / 2**30:.1f} GiB free"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"


def _mpi() -> Iterator[str]:
    """Show which MPI the ranks will load; a problem if there is none, or its launcher is another's."""
    from ..launch import mpiexec

    try:
        mpi = mpiexec.find(mpiexec.probe(sys.executable))
    except HvdliteError as error:
        yield str(error)
        return
    click.echo(f"MPI          {mpi.vendor} {mpi.version}, {mpi.libmpi}")
    click.echo(f"mpiexec      {mpi.mpiexec} (belongs to it)")


def _two_ranks() -> Iterator[str]:
    """Start two ranks as hvdliterun does and let them average numbers."""
    words = [sys.executable, "-m", "hvdlite", "run", "-np", "2", "--no-prefix", "-m", "hvdlite.launch.check"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield f"two ranks did not finish within {_CHECK_SECONDS} s; a second or two is expected; run {' '.join(words[1:])} to see where they stop"
        return
    if done.returncode == 0:
        click.echo(f"2-rank test  {(done.stdout.strip().splitlines() or ['passed'])[-1]}")
        return
    for line in done.stderr.strip().splitlines()[-20:]:
        click.echo(f"  | {line}")
    yield f"two ranks could not communicate (exit code {done.returncode}); the reason is above; mend it and run hvdlite doctor again"
