"""``hvd.elastic.run``: a training that is run again from its last commit when a collective fails, and with other ranks when hosts change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import DuplicateNameError, EngineError, HorovodInternalError, HostsUpdatedInterrupt, PeerLeftError, StalledError
from ..world import reset as reset_world
from .notifications import Notifications
from .restart import next_restart
from .state import State

R = TypeVar("R")

FAILURES_IN_VAIN = 3
"""So many failures in a row, without a commit between them, are given to the caller: they would go on for ever."""

_NEED_A_LAUNCHER = (PeerLeftError, StalledError, EngineError)
"""After these a rank is missing, or nothing can be communicated: only new processes help."""


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Make a training elastic: ``func(state, ...)``, decorated, first gives every rank the state of rank 0.

    - A collective fails (``HorovodInternalError``), or a rank is lost: all go back to the last commit, and ``func`` is called again.
    - Hosts change (``HostsUpdatedInterrupt``, from ``state.commit()`` or ``state.check_host_updates()``): ``func`` is called again from the state as it is.

    Under ``hvdliterun --min-np N`` the processes are new ones then: the script runs from its beginning up to here. Elsewhere the process stays, the number of
    ranks too, and the loss of a rank ends the job.

    Args:
        func: takes a :class:`State` first.
    """
    return run_fn(func, reset_world)


def run_fn(func: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """:func:`run`, with another way of making this process ready for new ranks."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        restart = next_restart()
        failures = _Failures()
        skip_sync = False
        if restart is not None:
            restart.begin(state)
        with Notifications(state):
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    if restart is not None:
                        restart.leave_after(error)
                    failures.check(error, state._num_commits)
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    if restart is not None:
                        restart.leave_with(state)
                    skip_sync = interrupt.skip_sync
                reset()
                state.on_reset()

    return wrapper


class _Failures:
    """Counts those in a row."""

    def __init__(self) -> None:
        self._number, self._commits = 0, -1

    def check(self, error: HorovodInternalError, num_commits: int) -> None:
        """Raise the error again if there is no point in another attempt in this process."""
        self._number = self._number + 1 if num_commits == self._commits else 1
        self._commits = num_commits
        if isinstance(error, _NEED_A_LAUNCHER):
            error.add_note("hvd.elastic.run goes on after the loss of a rank only under hvdliterun --min-np N, which starts the ranks again")
            raise error
        if isinstance(error, DuplicateNameError) or self._number == FAILURES_IN_VAIN:
            raise error
