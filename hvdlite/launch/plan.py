"""From what the user asked for to a running job: which Python, which MPI, which environment, which folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import settings
from ..as_horovod import FOLDER
from ..errors import LaunchError, SettingError
from ..link import Link
from . import mpiexec
from .command import Command
from .hosts import INTERFACE, Hosts
from .job import Job
from .output import Output, warn
from .worker import STDIN

_SHELL = "SHELL"  # in a command line: what takes a command to a host, which is there when the hosts are


@dataclass(frozen=True)
class Options:
    """How to run a command; the fields are the launcher's flags."""

    size: int
    knobs: Mapping[str, str] = field(default_factory=dict)  # HVDLITE_ variables
    prefix: bool = True
    output_folder: Path | None = None
    shown_ranks: frozenset[int] | None = None  # whose output is shown; None: everybody's
    grace_seconds: float = 30.0
    verbose: bool = False
    as_horovod: bool = False  # "import horovod" gives hvdlite
    link: Link | None = None  # ranks are on hosts of their own, made for the job and joined by such links
    num_hosts: int = 1  # with a link: so many


@dataclass(frozen=True)
class Plan:
    """A command line, and the variables it gets beyond those of this process."""

    command: Command
    mpi: mpiexec.Installation
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    notes: tuple[str, ...]
    hosts: Hosts | None = None


def prepare(command: Command, options: Options) -> Plan:
    """Find the MPI and build the command line.

    Raises:
        LaunchError: there is no usable MPI.
    """
    command, answer, notes = _with_hvdlite(command)
    return build(command, mpiexec.find(answer), options, notes)


def build(command: Command, mpi: mpiexec.Installation, options: Options, notes: Sequence[str] = ()) -> Plan:
    """The command line of a command that hvdlite can run, under an MPI that was found."""
    notes = list(notes)
    cores, size = len(os.sched_getaffinity(0)), options.size
    present = settings.snapshot()
    threads = str(max(1, cores // size))
    needed = {**mpiexec.environment(mpi, size, cores=cores, is_root=os.geteuid() == 0), "OMP_NUM_THREADS": threads}
    variables = {name: value for name, value in needed.items() if not present.get(name)}
    variables |= {"PYTHONUNBUFFERED": "1", settings.env_name("size"): str(size), **options.knobs, **_terminal(size, present)}
    if options.as_horovod:
        variables = {**_as_horovod(present), **variables}
    if "OMP_NUM_THREADS" in variables:
        notes.append(f"OMP_NUM_THREADS={threads} for each of {size} ranks on {cores} cores; set it yourself to change that")
    if size > cores:
        notes.append(f"{size} ranks share {cores} cores: they run, but slowly")
    if options.link is None:
        return Plan(command, mpi, (*mpiexec.arguments(mpi, size), *command.worker()), variables, tuple(notes))
    counts, hosts = shares(size, options.num_hosts), Hosts(options.num_hosts, options.link)
    network = mpiexec.Network(INTERFACE, _SHELL, ",".join(f"{a}:{n}" for a, n in zip(hosts.addresses, counts, strict=True)))
    variables |= mpiexec.network_environment(mpi, INTERFACE)
    return Plan(command, mpi, (*mpiexec.arguments(mpi, size, network), *command.worker()), variables, tuple(notes), hosts)


def shares(size: int, num_hosts: int) -> list[int]:
    """How many ranks each host has: as alike as can be, the first ones one more.

    Raises:
        SettingError: there are fewer ranks than hosts.
    """
    if not 1 <= num_hosts <= size:
        raise SettingError(f"{num_hosts} hosts for {size} ranks; at least one rank a host is expected; ask for fewer hosts or more ranks")
    return [size // num_hosts + (i < size % num_hosts) for i in range(num_hosts)]


def execute(plan: Plan, options: Options) -> int:
    """Run the job and return its exit code."""
    with folder() as directory, _on_hosts(plan, directory) as arguments:
        job = make_job(replace(plan, arguments=tuple(arguments)), options, directory)
        output = make_output(options, directory, job, prefix=options.prefix and options.size > 1)
        return job.run(output, _feeder(directory))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for a job, gone afterwards.

    Raises:
        LaunchError: it cannot be made.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="hvdlite-"))
    except OSError as error:
        raise LaunchError(f"no folder for the job can be made in {tempfile.gettempdir()} ({error}); free space is expected there; set TMPDIR") from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def make_job(plan: Plan, options: Options, directory: Path, more: Mapping[str, str] | None = None, look: Callable[[], None] = lambda: None) -> Job:
    """The job of a plan, in its folder; ``more`` variables for the ranks, and what to call while it runs."""
    environment = settings.snapshot()
    settings.scrub_launcher_variables(environment)  # a job started inside a job is a job of its own
    environment |= {**plan.variables, **(more or {}), settings.env_name("job_dir"): str(directory)}
    return Job(plan.arguments, environment, options.size, directory, grace_seconds=options.grace_seconds, verbose=options.verbose, look=look)


def make_output(options: Options, directory: Path, job: Job, *, prefix: bool, largest_size: int = 0, append: bool = False) -> Output:
    """What shows and files the output of a job.

    Raises:
        SettingError: the files cannot be written.
    """
    try:
        return Output(
            directory,
            options.size,
            prefix=prefix,
            folder=options.output_folder,
            shown=options.shown_ranks,
            on_broken=job.stop_because_nobody_reads,
            largest_size=largest_size,
            append=append,
        )
    except OSError as error:
        raise SettingError(f"cannot write to {options.output_folder} ({error}); a folder is expected; choose another --output-filename") from None


@contextlib.contextmanager
def _on_hosts(plan: Plan, directory: Path) -> Iterator[list[str]]:
    """The command line; it runs on the first of the hosts, which last as long as the job."""
    if plan.hosts is None:
        yield list(plan.arguments)
        return
    with plan.hosts as hosts:
        shell = directory / "shell"
        hosts.write_shell(shell)
        yield hosts.on(0, [str(shell) if word == _SHELL else word for word in plan.arguments])


def _as_horovod(present: Mapping[str, str]) -> dict[str, str]:
    """The variables by which ranks, and what they start in turn, find hvdlite under the name horovod.

    What ran there must run here: Horovod does not compare the ranks' weights before the first step, so a difference is only a warning; and while ranks
    have joined, its means are divided by the number of all.
    """
    check, join = settings.env_name("check_parameters"), settings.env_name("join")
    path = os.pathsep.join([str(FOLDER), *filter(None, [present.get("PYTHONPATH")])])
    return {settings.env_name("as_horovod"): "1", "PYTHONPATH": path, check: present.get(check) or "warn", join: present.get(join) or "horovod"}


def _with_hvdlite(command: Command) -> tuple[Command, Mapping[str, object], list[str]]:
    """The command, run by a Python that has hvdlite: the one it names if possible, ours otherwise."""
    try:
        answer = mpiexec.probe(command.python)
        if answer["mpi4py"] or command.python == sys.executable:
            return command, answer, []
        raise LaunchError(f"{command.python} has no mpi4py")
    except LaunchError:
        if command.python == sys.executable:
            raise
        note = f"{command.python} cannot run hvdlite; using {sys.executable} instead"
        return replace(command, python=sys.executable), mpiexec.probe(sys.executable), [note]


def _terminal(size: int, present: Mapping[str, str]) -> dict[str, str]:
    """The size of our terminal, which the ranks cannot see, less the prefix."""
    if not os.isatty(1) or "COLUMNS" in present:
        return {}
    columns, lines = shutil.get_terminal_size()
    prefix = len(f"[{size - 1}] ") if size > 1 else 0
    return {"COLUMNS": str(max(20, columns - prefix)), "LINES": str(lines)}


def _feeder(directory: Path) -> Callable[[], None]:
    """Make the pipe that is rank 0's stdin, and return what fills it from ours; no pipe if we have no stdin to give."""
    if not _has_stdin():
        return lambda: None
    path = directory / STDIN
    os.mkfifo(path, 0o600)

    def pump() -> None:
        try:
            with path.open("wb", buffering=0) as pipe:
                while data := os.read(0, 65536):
                    pipe.write(data)
        except OSError:  # rank 0 closed its stdin, or ours became unreadable
            return

    return lambda: threading.Thread(target=pump, name="hvdlite-stdin", daemon=True).start()


def _has_stdin() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp() if os.isatty(0) else os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False


def announce(plan: Plan) -> None:
    """Say what the user should know before the ranks speak."""
    for note in plan.notes:
        warn(note)
