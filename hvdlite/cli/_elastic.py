"""The options of an elastic job, for ``hvdliterun``. Names and meaning are horovodrun's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from .. import settings
from ..errors import SettingError
from . import _horovodrun

if TYPE_CHECKING:
    from ..launch.elastic import Elastic

_COUNT = click.IntRange(min=1)

OPTIONS = (
    click.Option(["--min-np", "--min-num-proc", "min_np"], type=_COUNT, metavar="N", help="elastic: go on while there are so many ranks  [default: -np]"),
    click.Option(["--max-np", "--max-num-proc", "max_np"], type=_COUNT, metavar="N", help="elastic: use at most so many ranks  [default: all slots]"),
    click.Option(["--host-discovery-script"], metavar="SCRIPT", help="elastic: prints host:slots, a host a line; run once a second"),
    click.Option(["--slots-per-host"], type=_COUNT, metavar="N", help="elastic: ranks on a host for which nothing else says how many"),
    click.Option(["--reset-limit"], type=click.IntRange(min=0), metavar="N", help="elastic: start the job again at most so often"),
    click.Option(
        ["--blacklist-cooldown-range"],
        type=click.FloatRange(min=0),
        nargs=2,
        metavar="MIN MAX",
        help="elastic: seconds for which a host that failed is left out  [default: for good]",
    ),
)


@dataclass(frozen=True)
class Given:
    """The values of :data:`OPTIONS`, in their order."""

    min_ranks: int | None
    max_ranks: int | None
    script: str | None
    slots_per_host: int | None
    reset_limit: int | None
    cooldown_seconds: tuple[float, float] | None


def elastic(size: int | None, given: Given, variables: Mapping[str, str]) -> Elastic | None:
    """What makes the job elastic; None where nothing does.

    Args:
        size: ``-np``.
        given: the other options.
        variables: what the command line sets beyond the environment.
    Raises:
        SettingError: the options contradict each other.
    """
    if given.min_ranks is None and given.max_ranks is None and given.script is None:
        for name, value in (("--slots-per-host", given.slots_per_host), ("--reset-limit", given.reset_limit)):
            if value is not None:
                _without_meaning(name)
        if given.cooldown_seconds:
            _without_meaning("--blacklist-cooldown-range")
        return None
    from ..launch.discovery import FixedHosts, ScriptedHosts
    from ..launch.elastic import Elastic
    from ..launch.output import warn

    start = size or given.min_ranks or given.max_ranks
    if start is None:
        raise SettingError("neither -np nor --min-np is given; how many ranks must be there is expected; write e.g. -np 2 --min-np 1")
    least = given.min_ranks or start
    if not least <= start <= (given.max_ranks or start):
        most = "" if given.max_ranks is None else f" and --max-np {given.max_ranks}"
        raise SettingError(f"-np {start} lies outside --min-np {least}{most}; a number between them is expected; correct one of them")
    fixed = _horovodrun.slots()
    if given.script is not None and fixed is not None:
        raise SettingError("both --host-discovery-script and -H or -hostfile are given; hosts come from one of them; leave the other out")
    if fixed is None:
        fixed = {"localhost": given.slots_per_host or size or given.max_ranks or start}

    def check(slots: Mapping[str, int]) -> None:
        _horovodrun.check_hosts(slots, f"--host-discovery-script {given.script}")

    discovery = FixedHosts(fixed) if given.script is None else ScriptedHosts(given.script, given.slots_per_host, check, warn)
    knobs = settings.Settings.from_environ({**settings.snapshot(), **variables})
    return Elastic(discovery, start, least, given.max_ranks, knobs.elastic_timeout_seconds, given.reset_limit, given.cooldown_seconds or None)


def _without_meaning(name: str) -> None:
    click.echo(f"hvdliterun: {name} is for elastic jobs and is ignored; --min-np, --max-np or --host-discovery-script makes a job elastic", err=True)
