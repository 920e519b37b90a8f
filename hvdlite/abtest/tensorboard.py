"""The runs as scalars for TensorBoard, one folder an arm and seed, each written when its run has ended."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError, SettingError
from ..telemetry.reports import COUNTERS
from .files import writing
from .runs import Run, name_of


class Scalars:
    """Writes into a folder: what the script reported under its own names, the counters of rank 0 a step under ``hvdlite/``."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        """Make the folder.

        Raises:
            MissingDependencyError: tensorboardX is not installed.
            SettingError: it is a file, or there are files in it and this is no ``--resume``.
        """
        try:
            from tensorboardX import RecordWriter
        except ImportError as error:
            raise MissingDependencyError(
                f"--tensorboard needs tensorboardX, which writes TensorBoard's files ({error}); pip install tensorboardX, or leave --tensorboard out"
            ) from None
        if folder.exists() and not folder.is_dir():
            raise SettingError(f"--tensorboard {str(folder)!r} is a file; a folder is expected; choose another")
        if folder.exists() and any(folder.iterdir()) and not resume:
            raise SettingError(f"--tensorboard {str(folder)!r} is not empty; a new folder is expected, or runs would be mixed up; choose another")
        self._folder, self._writer = folder, RecordWriter

    def write(self, run: Run) -> None:
        """A run that has ended. One that failed is left out, since --resume runs it again; one that is there stays as it is.

        Raises:
            HvdliteError: it cannot be written.
        """
        here = self._folder / name_of(run.record.seed, run.record.arm)
        if run.record.problem or here.exists():
            return
        new = here.with_name(here.name + ".new")
        with writing(here):
            try:
                new.mkdir(parents=True)
                # Not tensorboardX's SummaryWriter: it writes in a thread, and waits for it forever when the disk is full.
                with contextlib.closing(self._writer(str(new / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"))) as events:
                    for event in _events(run):
                        events.write(event.SerializeToString())
                new.rename(here)
            except OSError:
                shutil.rmtree(new, ignore_errors=True)
                raise


def _events(run: Run) -> Iterator[Any]:
    """As TensorBoard's format has it, the version of the format first."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar

    yield Event(wall_time=time.time(), file_version="brain.Event:2")
    for tag, value, step, when in _scalars(run):
        yield Event(wall_time=when, step=step, summary=scalar(tag, value))


def _scalars(run: Run) -> Iterator[tuple[str, float, int, float]]:
    """Tag, value, step and time of each."""
    began = datetime.fromisoformat(run.record.started).timestamp()
    before = None
    for report in run.reports:
        when = began + report.seconds
        for name, value in report.values.items():
            yield name, value, report.step, when
        if before is not None and report.optimizer_steps > before.optimizer_steps:
            steps = report.optimizer_steps - before.optimizer_steps
            spent = {name: (getattr(report, name) - getattr(before, name)) / steps for name in COUNTERS}
            for name, value in {"step_ms": (report.seconds - before.seconds) * 1e3 / steps, **spent}.items():
                yield f"hvdlite/{name}", value, report.step, when
        before = report
