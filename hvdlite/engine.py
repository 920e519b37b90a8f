"""The communication thread: negotiate, encode, send, decode, deliver.

One thread a process owns every call into the transports. Users' threads hand it operations and wait for handles on an event, so signals
and Ctrl-C work. Idle, the thread sleeps on an event; waiting, it looks with growing pauses and never spins. Several exchanges are in
flight at once, each on a lane (a communicator) of its own; on one lane requests start in the order that all ranks agreed on.
"""

from __future__ import annotations

import threading
import time

from ._promptness import make_prompt
from .channel import Channel, Common
from .errors import EngineError, HorovodInternalError
from .registry import Registry
from .settings import Settings
from .submissions import Handle, Operation
from .telemetry.last import LastCollective
from .telemetry.metrics import Metrics
from .telemetry.timeline import Timeline
from .transports import Transport

IDLE_LOOK_SECONDS = 0.5
"""How often an idle thread looks for notes from other ranks."""


class Engine:
    """Runs operations over a transport."""

    def __init__(self, transport: Transport, settings: Settings, metrics: Metrics, last: LastCollective):
        self._common = Common(settings, metrics, last)
        self.sets = Registry(transport, self._common)
        """Who communicates with whom."""
        self.is_broken = False
        """Whether the thread ended with a fault, so that the transport is in an unknown state."""
        self._thread: threading.Thread | None = None
        if transport.topology.size > 1:
            self._thread = threading.Thread(target=self._run, name="hvdlite", daemon=True)
            self._thread.start()

    # --- the users' side ---

    @property
    def channel(self) -> Channel:
        """What all ranks have in common."""
        return self.sets.everyone

    @property
    def timeline(self) -> Timeline | None:
        """Where to note what happens; may come and go at any time."""
        return self._common.timeline

    @timeline.setter
    def timeline(self, timeline: Timeline | None) -> None:
        self._common.timeline = timeline

    def submit(self, operation: Operation) -> Handle:
        """Queue an operation of all ranks. See :meth:`Channel.submit`."""
        return self.channel.submit(operation)

    def stop(self) -> bool:
        """Leave the job: finish what is agreed, tell the other ranks, end the thread. Whether every rank left together."""
        self.sets.leave_all(EngineError("hvdlite has been shut down; nothing can be communicated after that; call hvdlite.init() again"))
        if self._thread is None:
            return True
        self._thread.join()
        if self.channel.left_together:
            self.sets.close_sets()
        return self.channel.left_together

    # --- the communication thread ---

    def _run(self) -> None:
        settings, wake = self._common.settings, self._common.wake
        pause = _Pause(settings.poll_min_us * 1e-6, settings.poll_max_us * 1e-6)
        make_prompt()
        try:
            while not self.sets.have_ended:
                moved = False
                for channel in self.sets.channels:
                    moved |= channel.look()
                if moved:
                    pause.reset()
                elif all(channel.is_idle for channel in self.sets.channels):
                    wake.wait(IDLE_LOOK_SECONDS)
                    wake.clear()
                else:
                    pause.take()
            for channel in self.sets.channels:
                channel.end()
        except BaseException as cause:  # noqa: BLE001 - whatever it was, every waiting thread must hear of it
            self._break_down(cause)

    def _break_down(self, cause: BaseException) -> None:
        error = (
            cause
            if isinstance(cause, HorovodInternalError)
            else EngineError(f"the communication thread failed: {type(cause).__name__}: {cause}; no collective can follow")
        )
        error.__cause__ = cause if error is not cause else error.__cause__
        self.is_broken = True
        for channel in self.sets.channels:
            channel.break_down(error, cause)


class _Pause:
    """Growing pauses: short while an answer is near, up to a few milliseconds when the wait gets long."""

    def __init__(self, shortest: float, longest: float):
        self._shortest, self._longest = shortest, longest
        self.reset()

    def reset(self) -> None:
        self._pause = self._shortest
        self._started = 0.0

    def take(self) -> None:
        now = time.monotonic()
        self._started = self._started or now
        waited = now - self._started
        limit = self._longest if waited < 0.1 else max(self._longest, 1e-3 if waited < 2 else 5e-3)
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, limit)
