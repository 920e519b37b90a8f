"""``hvdlite ab``: does compression pay here, and does it hurt?"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ..errors import MissingDependencyError, SettingError
from ..link import Link
from .run import Launching, num_ranks, read_link

_NEEDED = ("numpy", "scipy", "rich", "jinja2", "matplotlib")
PAGE = "ab.html"
_EXAMPLE = "write e.g. hvdlite ab --arms powersgd:rank=4 -np 2 -- python train.py"


def _pattern(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        groups = re.compile(value).groups if value else 1
    except re.error as error:
        raise SettingError(f"--metric-regex {value!r} cannot be read ({error}); a regular expression is expected; correct it") from None
    if groups != 1:
        raise SettingError(f"--metric-regex {value!r} has {groups} groups; one is expected, around the number; write e.g. 'accuracy: ([0-9.]+)'")
    return value


def _until(written: str, higher_is_better: bool) -> tuple[str, str]:
    """``loss=0.1`` -> the metric and the limit."""
    name, equals, value = written.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not name.strip().isidentifier() or number != number:
        raise SettingError(f"--until {written!r} cannot be read; a metric and a number are expected; write e.g. --until loss=0.1")
    return name.strip(), f"{name.strip()}{'>=' if higher_is_better else '<='}{number:g}"


def _ab(
    *,
    size: str | None,
    command: tuple[str, ...],
    arms: str | None,
    seeds: int | None,
    metric: str | None,
    higher_is_better: bool,
    margin: float | None,
    steps: int | None,
    minutes: float | None,
    until: str | None,
    metric_regex: str,
    link: Link | None,
    hosts: int | None,
    mode: Any,
    fork_at: int | None,
    shadow_every: int | None,
    output: Path,
    resume: bool,
    no_baselines: bool,
    compare: tuple[Path, Path] | None,
    report: Path | None,
    tensorboard: Path | None,
) -> int:
    """Train COMMAND with several compressors (the arms) on several seeds, and say whether one is faster than no compression, and whether it is worse.

    COMMAND is your own script: the arm reaches it as HVDLITE_COMPRESSION, the seed as HVDLITE_SEED and in place of {seed}, and it tells what it has reached
    by hvd.report(loss=...). docs/ab.md says how to read the answer. The exit code is 0 if every run gave its figures, 1 if some are missing, 2 for a usage
    error, 128 + signal if it is interrupted; what has ended is kept, and --resume goes on.
    """
    _check_packages()
    if compare is not None:
        return _compare(*compare)
    if report is not None:
        return _report(report)
    from ..abtest.arms import entangled, parse_arms
    from ..abtest.plan import Plan
    from ..launch.command import parse

    if arms is None:
        raise SettingError(f"--arms is missing; the compressors to compare are expected; {_EXAMPLE}")
    number = num_ranks(size)
    if number < 2:
        raise SettingError(f"-np {number} exchanges no gradients; at least 2 ranks are expected; {_EXAMPLE}")
    parse(command)
    limits = [given for given in (steps, minutes, until) if given is not None]
    if len(limits) > 1:
        raise SettingError("more than one of --steps, --minutes and --until is given; a run ends in one way; keep one")
    stop_at = f"steps={steps}" if steps else f"minutes={minutes:g}" if minutes else ""
    if until is not None:
        named, stop_at = _until(until, higher_is_better)
        metric = metric or named
    chosen = parse_arms(arms, baselines=not no_baselines)
    for line in entangled(chosen):
        click.echo(f"hvdlite ab: {line}", err=True)
    number_of_hosts = _check_hosts(number, link, hosts)
    how = _check_mode(mode, fork_at, shadow_every, steps, chosen)
    where = (link.spec if link else "", number_of_hosts)
    seeds = seeds or (1 if mode == "shadow" else 6)
    plan = Plan(command, tuple(chosen), seeds, number, metric or "loss", higher_is_better, margin, stop_at, metric_regex, *where, mode, *how)
    return _execute(plan, output, resume, tensorboard)


def _check_hosts(size: int, link: Link | None, num_hosts: int | None) -> int:
    """How many hosts there are, after making them once: what this machine cannot do is said before the first run."""
    if link is None:
        if num_hosts is not None:
            raise SettingError(f"--hosts {num_hosts} stands alone; it deals ranks to the hosts that --link makes; add e.g. --link 1gbit, or leave it out")
        return 1
    from ..launch.hosts import Hosts
    from ..launch.plan import shares

    count = len(shares(size, num_hosts or size))
    with Hosts(count, link):
        return count


def _check_mode(mode: str, fork_at: int | None, shadow_every: int | None, steps: int | None, arms: Sequence[str]) -> tuple[int, int]:
    """``--fork-at`` and ``--shadow-every``, each with its mode and no other."""
    for name, value, its_mode in (("--fork-at", fork_at, "fork"), ("--shadow-every", shadow_every, "shadow")):
        if value is not None and mode != its_mode:
            raise SettingError(f"{name} {value} means nothing in --mode {mode}; --mode {its_mode} is expected with it; add that, or leave it out")
    if mode == "fork" and fork_at is None:
        raise SettingError("--fork-at is missing; --mode fork expects the step at which compression begins; write e.g. --mode fork --fork-at 200 --steps 400")
    if fork_at is not None and steps is not None and steps <= fork_at:
        raise SettingError(f"--steps {steps} ends each run before the fork at {fork_at}; more steps are expected; raise --steps, or lower --fork-at")
    if mode == "shadow" and arms[0] != "none":
        raise SettingError("--mode shadow trains without compression, and none is not among the arms; it is expected first; leave --no-baselines out")
    return fork_at or 0, shadow_every or 1


def _execute(plan: Any, output: Path, resume: bool, tensorboard: Path | None) -> int:
    from ..abtest import display, page, result, runner
    from ..abtest.plan import begin
    from ..abtest.tensorboard import Scalars

    scalars = Scalars(tensorboard, resume=resume) if tensorboard is not None else None
    begin(plan, output, resume=resume)
    interrupted = 0
    try:
        with display.Progress(plan, sys.stderr) as progress:
            runner.run_all(plan, output, progress, scalars.write if scalars is not None else None)
    except runner.Interrupted as error:
        interrupted = error.number
    answer = result.analyse(plan, runner.finished(plan, output))
    result.write(answer, output)
    page.write(answer, output / PAGE)
    if interrupted:
        done = len(plan.order()) - len(answer.missing)
        click.echo(f"hvdlite ab: interrupted; {done} of {len(plan.order())} runs are kept in {output}; the same command line with --resume goes on", err=True)
        return 128 + interrupted
    display.show(answer, sys.stdout)
    click.echo(f"page: {output / PAGE}; figures: {output / result.JSON}, {output / result.CSV}")
    return 1 if answer.missing else 0


def _report(path: Path) -> int:
    """Show an answer again, and write its page anew; nothing is run."""
    from ..abtest import display, page, result

    path = path / result.JSON if path.is_dir() else path
    answer = result.load(path)
    page.write(answer, path.with_suffix(".html"))
    display.show(answer, sys.stdout)
    click.echo(f"page: {path.with_suffix('.html')}")
    return 1 if answer.missing else 0


def _compare(first: Path, second: Path) -> int:
    from ..abtest import display, result
    from ..abtest.comparison import compared, differences

    a, b = result.load(first), result.load(second)
    for title, each in ((first, a), (second, b)):
        click.echo(f"{title}:")
        display.show(each, sys.stdout)
        click.echo()
    for line in [*compared(a, b), *(f"they differ in {line}" for line in differences(a, b))]:
        click.echo(line)
    return 0


def _check_packages() -> None:
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise MissingDependencyError(f"hvdlite ab needs {' and '.join(absent)}; they come with the extra 'ab'; pip install 'hvdlite[ab]'")


_PARAMETERS: list[Any] = [
    click.Option(["--arms"], metavar="SPECS", help="compressors to compare, e.g. powersgd:rank=4,topk:density=0.01; none and fp16 are added"),
    click.Option(["--no-baselines"], is_flag=True, help="do not add none and fp16; without none the first arm is the baseline"),
    click.Option(["--seeds"], type=click.IntRange(min=1), help="runs of each arm: 6 by default, below that there is no verdict; 1 with --mode shadow"),
    click.Option(["-np", "-n", "--num-proc", "size"], metavar="N", help="number of ranks (required)"),
    click.Option(["--metric"], metavar="NAME", help="what hvd.report() calls the metric; the name in --until if that is given, else loss"),
    click.Option(["--higher-is-better"], is_flag=True, help="as for an accuracy"),
    click.Option(["--margin"], type=click.FloatRange(min=0), help="by how much worse still counts as not worse; by default by a rule, see docs/ab.md"),
    click.Option(["--metric-regex"], metavar="RE", default="", callback=_pattern, help="read the metric from the output: the last match, its one group"),
    click.Option(["--steps"], type=click.IntRange(min=1), help="end each run at this reported step"),
    click.Option(["--minutes"], type=click.FloatRange(min=0, min_open=True), help="end each run at the first report after so long"),
    click.Option(["--until"], metavar="NAME=VALUE", help="end each run when it reports this, e.g. loss=0.1"),
    click.Option(["--mode"], type=click.Choice(["full", "fork", "shadow"]), default="full", show_default=True, help="whole runs; runs that part; or one run"),
    click.Option(["--fork-at"], type=click.IntRange(min=1), metavar="STEP", help="with --mode fork: all arms train alike, uncompressed, up to here"),
    click.Option(["--shadow-every"], type=click.IntRange(min=1), metavar="N", help="with --mode shadow: look at every so many steps; 1 by default"),
    click.Option(["--link"], metavar="RATE", callback=read_link, help="put each rank on a host of its own, joined by links of e.g. 1gbit; needs root"),
    click.Option(["--hosts"], type=click.IntRange(min=1), default=None, metavar="N", help="with --link: deal the ranks to so many hosts"),
    click.Option(
        ["--output"], type=click.Path(path_type=Path), default=Path("hvdlite-ab"), show_default=True, metavar="DIR", help="folder of the runs and the answer"
    ),
    click.Option(["--resume"], is_flag=True, help="go on with the comparison in --output: run what is missing or failed"),
    click.Option(["--tensorboard"], type=click.Path(path_type=Path), default=None, metavar="DIR", help="also write each run's scalars there, for TensorBoard"),
    click.Option(["--report"], type=click.Path(path_type=Path), default=None, metavar="A", help="show an ab.json again and write its page anew; runs nothing"),
    click.Option(["--compare"], type=click.Path(path_type=Path), nargs=2, default=None, metavar="A B", help="show two ab.json, and in what they differ"),
]

command = Launching(
    "ab",
    params=[*_PARAMETERS, click.Argument(["command"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")],
    callback=_ab,
    help=_ab.__doc__,
    short_help="Compare compressors on your own training.",
    context_settings={"allow_interspersed_args": False, "max_content_width": 120},
)
