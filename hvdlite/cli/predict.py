"""``hvdlite predict``: would compression pay here, or on another network?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import SettingError
from ..link import parse_link
from .run import Launching, num_ranks

if TYPE_CHECKING:
    from ..predict.measured import Measured
    from ..predict.place import Place

_ARMS = "fp16,int8,topk:density=0.01,powersgd:rank=4"
_EXAMPLE = "write e.g. hvdlite predict -np 2 -- python train.py"


def _predict(
    *,
    size: str | None,
    command: tuple[str, ...],
    arms: str | None,
    link: tuple[str, ...],
    ranks: int | None,
    hosts: int | None,
    cores: float | None,
    steps: int,
    json_file: Path | None,
    kept: Path | None,
    keep: Path | None,
    audit: Path | None,
) -> int:
    """Forecast what a step of your training would take with each compressor, here and elsewhere, without training with any of them.

    COMMAND is your own script. A few of its steps are timed on the ranks of this machine, then the collectives and each compressor on its real gradients; from
    that the steps are simulated. docs/predict.md says how to read the answer, and what it cannot tell.
    """
    from ..predict import display, measured
    from ..predict.forecast import forecast
    from ..predict.model import calibrated

    if audit is not None:
        return _audit(audit, kept, keep, steps, json_file)
    chosen = _arms(arms)
    if kept is not None:
        if command or size is not None:
            raise SettingError(f"--from {str(kept)!r} and a command are given; what was measured is either kept or measured now; drop one")
        found = measured.load(kept)
        chosen = _arms(arms) if arms else list(found.layouts)
        places = _places(found.size, link, ranks, hosts, cores)
    else:
        number = num_ranks(size)
        if number < 2:
            raise SettingError(f"-np {number} exchanges no gradients; at least 2 ranks are expected; {_EXAMPLE}")
        places = _places(number, link, ranks, hosts, cores)
        found = _measure(command, number, chosen, places, steps)
    if keep is not None:
        measured.keep(found, keep)
    for line in display.about(found):
        click.echo(line)
    calibration = calibrated(found)
    forecasts = [forecast(found, place, calibration, chosen) for place in places]
    for each in forecasts:
        click.echo()
        for line in display.show(each):
            click.echo(line)
    if json_file is not None:
        _write(json_file, {"version": found.version, "command": found.command, "size": found.size, "calibration": calibration, "forecasts": forecasts})
    return 0


def _arms(written: str | None) -> list[str]:
    from ..abtest.arms import parse_arms

    chosen = parse_arms(written or _ARMS)
    return ["none", *(arm for arm in chosen if arm != "none")]


def _places(size: int, links: tuple[str, ...], ranks: int | None, hosts: int | None, cores: float | None) -> list[Place]:
    """Here, and where else was asked about."""
    from ..predict.place import Place

    own = cores or float(len(os.sched_getaffinity(0)))
    places = [] if ranks or hosts or links else [Place(size, 1, own)]
    if links or ranks or hosts:
        number = ranks or max(size, hosts or 0)
        number_of_hosts = hosts or (number if links else 1)
        if links and number_of_hosts == 1:
            raise SettingError("--link with --hosts 1: ranks of one host use no link; at least 2 hosts are expected; correct --hosts")
        places += [Place(number, number_of_hosts, own, None if link is None else parse_link(link)) for link in (links or (None,))]
    return places


def _measure(command: tuple[str, ...], size: int, arms: list[str], places: list[Place], steps: int) -> Measured:
    from ..launch.command import parse
    from ..predict.measure import Wanted, measure

    parse(command)
    wanted = Wanted(command, size, tuple(arms), tuple(sorted({size, *(p.exchanging for p in places)})), steps)
    return measure(wanted, lambda line: click.echo(f"hvdlite predict: {line}", err=True), len(os.sched_getaffinity(0)))


def _audit(path: Path, kept: Path | None, keep: Path | None, steps: int, json_file: Path | None) -> int:
    """Measure what an ab compared, forecast it, and show both."""
    from ..abtest import result
    from ..predict import display, measured
    from ..predict.audit import audit
    from ..predict.forecast import forecast
    from ..predict.model import calibrated

    real = result.load(path)
    plan = real.plan
    link, hosts = getattr(plan, "link", ""), getattr(plan, "hosts", 1)
    shared = len(os.sched_getaffinity(0)) / hosts  # the hosts that a comparison makes share this machine's cores
    places = _places(plan.size, (link,), None, hosts, shared) if link else _places(plan.size, (), None, None, None)
    arms = ["none", *(arm for arm in plan.arms if arm != "none")]
    found = measured.load(kept) if kept is not None else _measure(tuple(plan.command_for(0)), plan.size, arms, places, steps)
    if keep is not None:
        measured.keep(found, keep)
    answer = forecast(found, places[0], calibrated(found), arms)
    compared = audit(answer, real)
    click.echo(f"{answer.where}, against {path}:")
    for line in display.show_audit(compared):
        click.echo(line)
    if json_file is not None:
        _write(json_file, {"version": found.version, "forecasts": [answer], "audit": compared})
    return 0


def _write(path: Path, content: dict[str, Any]) -> None:
    from ..abtest.files import write_whole

    write_whole(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")


_PARAMETERS: list[Any] = [
    click.Option(["-np", "-n", "--num-proc", "size"], metavar="N", help="number of ranks to measure on (required)"),
    click.Option(["--arms"], metavar="SPECS", help=f"compressors to forecast; none and fp16 are added  [default: {_ARMS}]"),
    click.Option(["--link"], metavar="LINK", multiple=True, help="forecast for links such as 1gbit or 100mbit,delay=2ms; may be given several times"),
    click.Option(["--ranks"], type=click.IntRange(min=2), help="forecast for so many ranks  [default: those of -np]"),
    click.Option(["--hosts"], type=click.IntRange(min=1), help="on so many hosts  [default: one a rank where --link is given]"),
    click.Option(["--cores"], type=click.FloatRange(min=0, min_open=True), help="of each host  [default: this machine's]"),
    click.Option(["--steps"], type=click.IntRange(min=8), default=40, show_default=True, help="steps of the script to time"),
    click.Option(["--json", "json_file"], type=click.Path(path_type=Path), metavar="FILE", help="also write everything there"),
    click.Option(["--keep"], type=click.Path(path_type=Path), metavar="FILE", help="keep what was measured, to ask again"),
    click.Option(["--from", "kept"], type=click.Path(path_type=Path), metavar="FILE", help="ask again: measure nothing, use what --keep wrote"),
    click.Option(["--audit"], type=click.Path(path_type=Path), metavar="AB.JSON", help="forecast what this comparison measured, and show the error"),
]

command = Launching(
    "predict",
    params=[*_PARAMETERS, click.Argument(["command"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")],
    callback=_predict,
    help=_predict.__doc__,
    short_help="Forecast what compression would do, without trying it.",
    context_settings={"allow_interspersed_args": False, "max_content_width": 120},
)
