"""``report()``: how a script tells ``hvdlite ab`` what it has reached."""

from __future__ import annotations

import logging
from typing import SupportsFloat

import numpy as np

from .collectives import broadcast
from .world import world

LOG = logging.getLogger("hvdlite")


def report(step: int | None = None, **values: SupportsFloat) -> None:
    """Tell what the training has reached; does nothing outside ``hvdlite ab``, unless ``HVDLITE_REPORT_FILE`` or ``HVDLITE_STOP_AT`` is set.

    Every rank calls it, at the same places, and as often as you like: once a step, once an epoch, or once at the end. What rank 0 passes counts; average
    over the ranks before, if rank 0's share says too little.

    Args:
        step: number of training steps taken; the number of reports if left out.
        values: metrics by name, e.g. ``loss=loss, accuracy=0.93``; numbers, or tensors with one element.
    Raises:
        SystemExit: the limit of the run (``HVDLITE_STOP_AT``) is reached; with code 0, on every rank.
        NotInitializedError: before :func:`hvdlite.init`.
    """
    here = world()
    reports, stop_at = here.reports, here.reports.stop_at
    if not reports.are_wanted and stop_at is None:
        return
    reports.count += 1
    step, seconds = reports.count if step is None else int(step), reports.seconds
    is_first = here.topology.rank == 0
    numbers = {name: float(value) for name, value in values.items()} if is_first else {}
    if is_first:
        reports.write(step, seconds, numbers, here.metrics)
    if stop_at is None:
        return
    stops = stop_at.reached(step, seconds, numbers)
    if not stop_at.is_alike_everywhere:
        stops = bool(np.asarray(broadcast(np.array([stops], np.uint8), 0, name="report.stop"))[0])
    if stops:
        if is_first:
            LOG.info("hvdlite: the limit %s is reached at step %d; the script ends here", here.settings.stop_at, step)
        raise SystemExit(0)
