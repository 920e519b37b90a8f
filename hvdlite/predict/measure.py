"""Measures: a few steps of the user's script, then collectives and compressors, each in a job of its own on the ranks of this machine."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from .. import settings
from ..errors import HvdliteError, LaunchError
from ..launch import command as commands
from ..launch.worker import die_with_parent
from ..telemetry.steps import WARM_UP_STEPS, file_of
from ..tuning import DEFAULT_BUCKET_BYTES
from ..version import VERSION
from .costs import TransportCosts
from .measured import FromScript, Measured
from .ranks import Found, Task

_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_MODULE = "hvdlite.predict.ranks"
_T = TypeVar("_T")

OVER_LOOPBACK = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "MPIR_CVAR_NOLOCAL": "1",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
}
"""Ranks of one machine talk through the system's network, as if each were alone on its own: what a network costs a processor."""

Launcher = Callable[[Sequence[str], bool], tuple[list[str], dict[str, str]]]
"""From the command of a rank, and whether ranks are to talk as over a network, to a command line and what its environment needs."""


@dataclass(frozen=True)
class Wanted:
    """What to measure."""

    command: tuple[str, ...]
    size: int
    arms: tuple[str, ...]
    num_ranks: tuple[int, ...]
    """Numbers of ranks in an exchange that will be asked about."""
    num_steps: int


def here(size: int) -> Launcher:
    """Ranks on this machine."""

    def launch(command: Sequence[str], over_network: bool) -> tuple[list[str], dict[str, str]]:
        more = {**OVER_LOOPBACK, settings.env_name("transport"): "mpi"} if over_network else {}
        return [sys.executable, "-m", "hvdlite", "run", "-np", str(size), "--no-prefix", *command], more

    return launch


def measure(wanted: Wanted, say: Callable[[str], None], cores: int, launcher: Launcher | None = None) -> Measured:
    """Measure.

    Raises:
        LaunchError: a job failed, or the script ended before enough steps were seen.
    """
    launch = launcher or here(wanted.size)
    python = commands.parse(wanted.command).python
    with tempfile.TemporaryDirectory(prefix="hvdlite-predict-") as name:
        folder = Path(name)
        say(f"1 of 3: {WARM_UP_STEPS + wanted.num_steps} steps of your script, uncompressed")
        ranks = _script(wanted, folder, launch)
        first = ranks[0]
        task = Task(wanted.arms, wanted.num_ranks, first.parameters, first.bucket_bytes)
        (folder / "request.json").write_bytes(msgspec.json.encode(task))
        say(f"2 of 3: {len(wanted.arms)} compressors on its {len(first.parameters)} gradients, and collectives between the ranks of this machine")
        inside = _probe(wanted, folder, python, launch, "memory", over_network=False)
        (folder / "request.json").write_bytes(msgspec.json.encode(Task()))
        say("3 of 3: collectives as over a network")
        network = _probe(wanted, folder, python, launch, "network", over_network=True)
    return Measured(
        version=VERSION,
        command=wanted.command,
        size=wanted.size,
        cores=cores,
        slots=int(_knobs()["slots_in_use"]),
        ranks=tuple(ranks),
        layouts=inside[0].layouts,
        played=tuple(inside[0].played),
        memory=_costs(inside, wanted.size, is_memory=True) if first.local_size == first.size else None,
        network=_costs(network, wanted.size, is_memory=False),
        polling=median(f.polling for f in network[:1]),
    )


def _costs(found: Sequence[Found], size: int, *, is_memory: bool) -> TransportCosts:
    """Of the rank in the middle: medians over ranks of what is the same request."""
    samples = [s for f in found for s in f.samples]
    rounds, busy = ([max(each) for each in zip(*(getattr(f, name) for f in found), strict=True)] for name in ("round_seconds", "busy_round_seconds"))
    return TransportCosts.of(samples, rounds, busy, size, is_memory=is_memory)


def _knobs() -> dict[str, str]:
    """What is fixed, lest it be chosen by measurement meanwhile; what the user has set stays."""
    given = settings.Settings.from_environ()
    return {"bucket_bytes": str(given.bucket_bytes or DEFAULT_BUCKET_BYTES), "slots_in_use": str(given.slots_in_use or given.slots)}


def _script(wanted: Wanted, folder: Path, launch: Launcher) -> list[FromScript]:
    knobs = {**_knobs(), "compression": "none", "measure_folder": str(folder), "measure_steps": str(wanted.num_steps)}
    paths = [file_of(folder, rank) for rank in range(wanted.size)]
    _run(launch, wanted.command, knobs, folder, "script", until=lambda: all(p.exists() for p in paths))
    if not all(p.exists() for p in paths):
        raise LaunchError(
            f"the script ended before {WARM_UP_STEPS + wanted.num_steps} steps of an optimizer of hvdlite's on {wanted.size} ranks; "
            "so many are expected to measure; let it train longer, ask for fewer with --steps, or see that its optimizer is a DistributedOptimizer"
        )
    return [_read(path, FromScript) for path in paths]


def _probe(wanted: Wanted, folder: Path, python: str, launch: Launcher, name: str, *, over_network: bool) -> list[Found]:
    _run(launch, [python, "-m", _MODULE, str(folder), name], _knobs(), folder, name, over_network=over_network)
    return [_read(folder / f"{name}.{rank}.json", Found) for rank in range(wanted.size)]


def _run(
    launch: Launcher,
    command: Sequence[str],
    knobs: Mapping[str, str],
    folder: Path,
    name: str,
    *,
    over_network: bool = False,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run a job to its end, or until there is what it was run for."""
    line, more = launch(command, over_network)
    path = folder / f"{name}.output"
    with path.open("wb") as said:
        process = subprocess.Popen(
            line,
            env={**settings.snapshot(), **{settings.env_name(knob): value for knob, value in knobs.items()}, **more},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the job
            preexec_fn=die_with_parent,
        )
        try:
            while process.poll() is None and not until():
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(process)
    if process.returncode != 0 and not until():
        lines = path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
        raise LaunchError(f"the {name} job ended with exit code {process.returncode}; 0 is expected; it said last:\n" + "\n".join(lines[-12:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):  # hvdliterun: the second one kills the ranks
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    process.wait()


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise HvdliteError(f"{path.name} of a measuring job cannot be read ({error}); one a rank is expected; measure again") from None
