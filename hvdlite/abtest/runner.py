"""Runs a plan: one job after the other, each kept when it has ended, so that whatever interrupts costs one run at most."""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from .. import settings
from ..launch.worker import die_with_parent
from .display import Progress
from .files import writing
from .plan import Plan
from .runs import LAUNCHER, OUTPUT, REPORTS, Record, Run, find_metric, folder_of, keep, last_reports, read

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0  # from an interrupt to the next, harder one, for a run that is under way


class Interrupted(Exception):
    """A signal ends the comparison."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run_all(plan: Plan, folder: Path, progress: Progress, ended: Callable[[Run], None] | None = None) -> None:
    """Run what has not ended well yet; ``ended`` is called with every run that has, those of before included.

    Raises:
        Interrupted: by a signal; the run under way is ended, and lost.
        HvdliteError: a result cannot be kept.
    """
    with _interruptible():
        for seed, arm in plan.order():
            here = folder_of(folder, seed, arm)
            before = read(here, plan)
            if before is not None and not before.record.problem:
                progress.kept(seed, arm)
                if ended is not None:
                    ended(before)
                continue
            shutil.rmtree(here, ignore_errors=True)
            progress.begin(seed, arm)
            with writing(here):
                here.mkdir(parents=True)
                record = _run_one(plan, seed, arm, here, progress)
            keep(record, here)
            done = read(here, plan)
            assert done is not None
            progress.end(done)
            if ended is not None:
                ended(done)


def finished(plan: Plan, folder: Path) -> list[Run]:
    """The runs that have ended, in their order."""
    found = (read(folder_of(folder, seed, arm), plan) for seed, arm in plan.order())
    return [run for run in found if run is not None]


def _run_one(plan: Plan, seed: int, arm: str, here: Path, progress: Progress) -> Record:
    knobs = {"compression": arm, "seed": str(seed), "report_file": str((here / REPORTS).resolve()), "stop_at": plan.stop_at}
    if plan.mode == "fork":
        knobs["compress_after_steps"] = str(plan.fork_at)
    elif plan.mode == "shadow":
        knobs |= {"shadow": ",".join(plan.candidates), "shadow_every": str(plan.shadow_every)}
    launcher = [sys.executable, "-m", "hvdlite", "run", "-np", str(plan.size), "--no-prefix", "--output-filename", str(here / OUTPUT)]
    launcher += ["--link", plan.link, "--link-hosts", str(plan.hosts)] if plan.link else []
    started, began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    with (here / LAUNCHER).open("wb") as said:
        process = subprocess.Popen(
            [*launcher, *plan.command_for(seed)],
            env={**settings.snapshot(), **{settings.env_name(name): value for name, value in knobs.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the job
            preexec_fn=die_with_parent,
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
                progress.look(here / REPORTS)
        finally:
            _end(process)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Record(arm, seed, code, started, round(time.monotonic() - began, 3), _problem(plan, here, code))


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):  # hvdliterun: the second one kills the ranks
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    process.wait()


def _problem(plan: Plan, here: Path, code: int) -> str:
    """Why a run says nothing about the metric; empty if it does."""
    if code != 0:
        said = (here / LAUNCHER).read_text(encoding="utf-8", errors="replace").splitlines()
        causes = [line.removeprefix("hvdliterun: ") for line in said if re.match(r"hvdliterun: rank \d+ ", line)] or said[-1:]
        return f"exit code {code}: {causes[0] if causes else 'nothing was said'}"
    reports = last_reports(here)
    if find_metric(here, plan, reports) is not None:
        return ""
    if plan.metric_regex:
        return f"--metric-regex {plan.metric_regex!r} found no number in what the ranks printed; see {here / OUTPUT}"
    known = sorted({name for r in reports for name in r.values})
    wanted = f"hvd.report({plan.metric}=...) is expected at least once; call it in the script, or read the output with --metric-regex"
    return f"no metric {plan.metric!r} was reported, but {', '.join(known) or 'nothing'}; {wanted}" + (f", or --metric {known[0]}" if known else "")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    def stop(number: int, _: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # once is enough: what follows is the orderly end
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
