"""A rank's side of a job that hvdliterun starts again: what is committed is kept outside of this process, and the rank can ask for another start."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

from .. import collectives, settings
from ..errors import HorovodInternalError
from ..launch import handover
from ..world import world

if TYPE_CHECKING:
    from .state import State

LOG = logging.getLogger("hvdlite")


class Restart:
    """One call of ``hvd.elastic.run`` in such a job, the ``number``-th of this process."""

    def __init__(self, elastic_directory: str, job_directory: str, number: int):
        self._handover, self._job_directory, self._number = handover.Handover(elastic_directory), job_directory, number
        self._rank = world().topology.rank
        self._complaint = ""

    def begin(self, state: State) -> None:
        """Rank 0 goes back to what the start before has committed, if it did, and all ranks call what is to follow a reset; from now on commits are kept."""
        is_again = self._handover.has(self._number)  # on every rank: nobody commits before all have come to the first sync
        if self._rank == 0:
            if is_again:
                state.load_snapshot(self._handover.recall(self._number))
            state._keep = self.keep
        if is_again:
            state.on_reset()

    def keep(self, state: State) -> None:
        """Keep what the state has saved last. What cannot be kept costs a warning and not the training: the commit before it stays."""
        saved = state.snapshot()
        if saved is None:
            self._complain(
                f"{type(state).__name__} has no snapshot(), so a job that is started again begins anew; derive it from hvd.elastic.ObjectState, or define it"
            )
            return
        try:
            self._handover.keep(self._number, saved)
        except OSError as error:
            self._complain(f"the state cannot be kept ({error}); if a rank fails, the job goes back to the last commit that could; make room, or set TMPDIR")

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            LOG.warning(text)

    def leave_after(self, error: HorovodInternalError) -> NoReturn:
        """A collective has failed: end, so that all start again from the last commit."""
        handover.leave(self._job_directory, self._rank, handover.ERROR, error)

    def leave_with(self, state: State) -> NoReturn:
        """The hosts have changed: keep the state as it is now, and end together with the other ranks."""
        state.save()
        if self._rank == 0:
            self.keep(state)
        try:
            collectives.barrier()
        except HorovodInternalError as error:
            self.leave_after(error)
        handover.leave(self._job_directory, self._rank, handover.HOSTS)


def next_restart() -> Restart | None:
    """That of the next call of ``hvd.elastic.run``; None where nobody starts the job again."""
    elastic_directory, job_directory = settings.elastic_directory(), settings.job_directory()
    if elastic_directory is None or job_directory is None:
        return None
    kept = world().kept
    number: int = kept.get(Restart, 0)
    kept[Restart] = number + 1
    return Restart(elastic_directory, job_directory, number)
