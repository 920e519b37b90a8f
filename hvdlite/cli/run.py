"""``hvdlite run`` and ``hvdliterun``: start a command on several ranks."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import click

from .. import settings
from ..errors import SettingError
from ..link import Link, parse_link
from . import _elastic, _horovodrun

_EXAMPLE = "write e.g. hvdliterun -np 2 python train.py"


class Launching(click.Command):
    """Everything from the command on belongs to the command, also when it begins with ``-m``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``--`` before the command."""
        values = {word: p.nargs for p in self.params if isinstance(p, click.Option) and not p.is_flag for word in p.opts}
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] not in ("-m", "--"):
            position += 1 + values.get(args[position], 0)
        if position < len(args) and args[position] != "--":
            args = [*args[:position], "--", *args[position:]]
        return super().parse_args(ctx, args)


def num_ranks(value: str | None) -> int:
    """The value of ``-np``."""
    if value is None:
        raise SettingError(f"-np is missing; the number of ranks is expected; {_EXAMPLE}")
    if not value.strip().isascii() or not value.strip().isdigit() or int(value) < 1:
        raise SettingError(f"-np {value} is no number of ranks; a whole number of at least 1 is expected; {_EXAMPLE}")
    return int(value)


def _ranks(_: click.Context, __: click.Parameter, value: str | None) -> frozenset[int] | None:
    if value is None:
        return None
    words = value.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise SettingError(f"--tee-ranks {value} is no list of ranks; numbers are expected; write e.g. --tee-ranks 0,1")
    return frozenset(int(word) for word in words)


def read_link(_: click.Context, __: click.Parameter, value: str | None) -> Link | None:
    """The value of ``--link``."""
    return None if value is None else parse_link(value)


def _knob(_: click.Context, parameter: click.Parameter, value: Any) -> str | None:
    if isinstance(value, bool):
        return str(int(value))
    if value is not None and parameter.name is not None:
        value = settings.as_written_here(settings.field(parameter.name).metadata["horovod"], value)
        settings.parse(parameter.name, value)
        if parameter.name == "compression":
            from .. import compression  # only now: it brings numpy

            compression.load(value)
    return None if value is None else str(value)


def _knobs() -> list[click.Parameter]:
    """A flag for every knob of :class:`hvdlite.settings.Settings`."""
    return [
        click.Option([settings.flag_name(f.name), f.name], metavar=type(f.default).__name__.upper(), callback=_knob, help=_help(f))
        if not isinstance(f.default, bool)
        else click.Option([f"{settings.flag_name(f.name)}/--no-{settings.flag_name(f.name)[2:]}", f.name], default=None, callback=_knob, help=_help(f))
        for f in settings.fields()
    ]


def _help(knob: dataclasses.Field[Any]) -> str:
    return f"{knob.metadata['help']}  [default: {knob.default}]"


def _run(
    *,
    size: str | None,
    command: tuple[str, ...],
    no_prefix: bool,
    output_filename: Path | None,
    tee_ranks: frozenset[int] | None,
    grace_seconds: float,
    dry_run: bool,
    verbose: bool,
    as_horovod: bool,
    min_np: int | None,
    max_np: int | None,
    host_discovery_script: str | None,
    slots_per_host: int | None,
    reset_limit: int | None,
    blacklist_cooldown_range: tuple[float, float] | None,
    link: Link | None,
    link_hosts: int | None,
    **knobs: str | None,
) -> int:
    """Run COMMAND on several ranks of this machine: a script, -m module, or any program. What follows COMMAND belongs to it.

    The exit code is that of the first rank that fails. With --min-np, --max-np or --host-discovery-script the job is elastic: see docs/elastic.md.
    """
    from ..launch import command as commands
    from ..launch import elastic, plan

    if link_hosts is not None and link is None:
        raise SettingError(f"--link-hosts {link_hosts} stands alone; it deals ranks to the hosts that --link makes; add e.g. --link 1gbit, or leave it out")
    knobs = {**_horovodrun.knobs(), **{name: value for name, value in knobs.items() if value is not None}}
    variables = {settings.env_name(name): value for name, value in knobs.items() if value is not None}
    given = _elastic.Given(min_np, max_np, host_discovery_script, slots_per_host, reset_limit, blacklist_cooldown_range)
    stretch = _elastic.elastic(None if size is None else num_ranks(size), given, variables)
    if stretch is not None and link is not None:
        raise SettingError("--link makes hosts for one number of ranks, and an elastic job has several; give -np alone with it, or leave it out")
    number = num_ranks(size) if stretch is None else stretch.start_ranks
    options = plan.Options(
        size=number,
        knobs=variables,
        prefix=not no_prefix,
        output_folder=output_filename,
        shown_ranks=tee_ranks,
        grace_seconds=grace_seconds,
        verbose=verbose,
        as_horovod=as_horovod,
        link=link,
        num_hosts=link_hosts or number,
    )
    prepared = plan.prepare(commands.parse(command), options)
    if dry_run or verbose:
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(prepared.variables.items())]
        click.echo(" ".join([*words, shlex.join(prepared.arguments)]), err=not dry_run)
    if dry_run:
        return 0
    if verbose:
        click.echo(f"hvdliterun: {prepared.mpi.vendor} {prepared.mpi.version}, library {prepared.mpi.libmpi}", err=True)
    plan.announce(prepared)
    return plan.execute(prepared, options) if stretch is None else elastic.execute(prepared, options, stretch)


_PARAMETERS: list[Any] = [
    click.Option(["-np", "-n", "--num-proc", "size"], metavar="N", help="number of ranks (required); of an elastic job, that must be there at first"),
    *_elastic.OPTIONS,
    click.Option(["--no-prefix"], is_flag=True, help="do not put [rank] before each line"),
    click.Option(["--output-filename"], type=click.Path(path_type=Path), metavar="DIR", help="also write DIR/rank.N/stdout and stderr"),
    click.Option(["--tee-ranks"], metavar="0,1", callback=_ranks, help="show only these ranks' output"),
    click.Option(["--grace-seconds"], type=click.FloatRange(min=0), default=30.0, show_default=True, help="from SIGTERM to SIGKILL"),
    click.Option(["--as-horovod"], is_flag=True, help="a script that imports horovod gets hvdlite under that name"),
    click.Option(
        ["--link"], metavar="RATE", callback=read_link, help="put each rank on a host of its own, made for the job, on links of e.g. 1gbit; needs root"
    ),
    click.Option(["--link-hosts"], type=click.IntRange(min=1), default=None, metavar="N", help="with --link: deal the ranks to so many hosts"),
    click.Option(["--dry-run"], is_flag=True, help="print the command line of MPI's launcher and stop"),
    click.Option(["--verbose", "-v"], is_flag=True, help="say which MPI is used, how it is called, and what its launcher says"),
]

command = Launching(
    "run",
    params=[*_PARAMETERS, *_knobs(), *_horovodrun.options(), click.Argument(["command"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")],
    callback=_run,
    help=_run.__doc__,
    short_help="Run a command on several ranks.",
    context_settings={"allow_interspersed_args": False, "max_content_width": 120},
)
