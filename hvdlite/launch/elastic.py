"""A job whose number of ranks may change: when a rank dies or hosts come and go, it is started again with the ranks there are then.

Each start is a job of its own, under MPI as any other; what was committed goes from one to the next through :mod:`.handover`. docs/elastic.md says what that
means for a program.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from .. import settings
from . import handover
from .discovery import INTERVAL_SECONDS, Discovery
from .job import Job
from .output import warn
from .plan import Options, Plan, build, folder, make_job, make_output
from .slots import KnownHosts, assign

FAILURES_IN_VAIN = 3
"""So many failures in a row, without a commit between them, end the job: it would fail for ever."""
_WAIT_SECONDS = 0.1  # between two looks for hosts while no rank runs


@dataclass(frozen=True)
class Elastic:
    """What an elastic job may do; the fields are horovodrun's options."""

    discovery: Discovery
    start_ranks: int  # so many slots must be there at first
    min_ranks: int
    max_ranks: int | None
    timeout_seconds: float
    reset_limit: int | None = None
    cooldown_seconds: tuple[float, float] | None = None


class Stopped(BaseException):
    """A signal came while no job was running."""

    def __init__(self, number: int):
        self.number = number


def execute(plan: Plan, options: Options, elastic: Elastic) -> int:
    """Run the job and return its exit code.

    Raises:
        LaunchError: the hosts cannot be found, or nothing can be started.
        SettingError: an option cannot be used.
    """
    with folder() as states:
        try:
            with _signals():
                return _Supervisor(plan, options, elastic, states).run()
        except Stopped as stop:
            return 128 + stop.number
        finally:
            elastic.discovery.close()


class _Supervisor:
    """Starts the job, again and again."""

    def __init__(self, plan: Plan, options: Options, elastic: Elastic, states: Path):
        self._plan, self._options, self._elastic, self._states = plan, options, elastic, states
        self._handover = handover.Handover(states)
        self._hosts = KnownHosts(elastic.cooldown_seconds)
        self._running: tuple[str, ...] = ()  # the host of each rank
        self._announced: tuple[str, ...] | None = None  # what the ranks know is to come
        self._resets = 0
        self._failures = 0
        self._digest_at_failure: bytes | None = None

    def run(self) -> int:
        """Until it ends well, or for good."""
        self._hosts.found(self._elastic.discovery.first())
        needed = self._elastic.start_ranks
        while True:
            if not self._wait_for(needed):
                return 1
            needed = self._elastic.min_ranks
            self._running = self._assignment()
            with folder() as directory:
                job, code = self._start(directory)
                if job.is_stopped:
                    return code
                if job.left(handover.HOSTS):
                    reason = "the hosts have changed"
                elif job.first_failure is None:
                    return code  # it ended well, or MPI did not start it
                elif not self._may_go_on(job):
                    return code
                else:
                    reason = f"rank {job.first_failure.rank} is lost"
            self._resets += 1
            limit = self._elastic.reset_limit
            if limit is not None and self._resets > limit:
                warn(f"{reason}, and the job was started again {limit} times already; --reset-limit {limit} ends it; raise the limit to go on")
                return code or 1
            before, after = len(self._running), len(self._assignment())
            warn(f"{reason}; the job is started again (reset {self._resets}); slots for ranks: {before} before, {after} now")

    def _start(self, directory: Path) -> tuple[Job, int]:
        options = replace(self._options, size=len(self._running))
        plan = build(self._plan.command, self._plan.mpi, options)
        self._announced = None
        job = make_job(plan, options, directory, {settings.env_name("elastic_dir"): str(self._states)}, look=lambda: self._look(directory))
        largest = self._elastic.max_ranks or 0
        output = make_output(options, directory, job, prefix=options.prefix, largest_size=largest, append=self._resets > 0)
        return job, job.run(output, lambda: None)  # no stdin: it could be given to the first start only

    def _may_go_on(self, job: Job) -> bool:
        """Take note of a failure; whether there is a point in another start."""
        failed = job.first_failure
        assert failed is not None
        if not job.left(handover.ERROR) and failed.rank < len(self._running):
            host = self._running[failed.rank]
            if self._hosts.failed(host, time.monotonic()):
                warn(f"host {host} is on the blacklist" + ("" if self._elastic.cooldown_seconds is None else " for a while"))
            if self._hosts.are_barred_for_good():
                warn("a rank has failed on every host, and none is left; the job ends")
                return False
        digest = self._handover.digest()
        self._failures = self._failures + 1 if digest == self._digest_at_failure else 1
        self._digest_at_failure = digest
        if self._failures == FAILURES_IN_VAIN:
            warn(f"{self._failures} failures in a row, and nothing was committed between them; the job ends, because it would fail again")
            return False
        return True

    # --- hosts ---

    def _assignment(self) -> tuple[str, ...]:
        return assign(self._hosts.available(time.monotonic()), self._elastic.max_ranks)

    def _wait_for(self, needed: int) -> bool:
        """Wait until there are so many slots; whether they came in time."""
        began = time.monotonic()
        said = False
        while (found := len(self._assignment())) < needed:
            waited = time.monotonic() - began
            if waited > self._elastic.timeout_seconds:
                warn(f"{found} of at least {needed} slots are there after {waited:.0f} s; --elastic-timeout ends the job; start it again when there are more")
                return False
            if not said and waited > INTERVAL_SECONDS:
                said = True
                warn(f"{found} of at least {needed} slots are there; waiting for more, for {self._elastic.timeout_seconds:g} s")
            time.sleep(_WAIT_SECONDS)
            self._discover()
        return True

    def _discover(self) -> None:
        found = self._elastic.discovery.look()
        if found is not None:
            self._hosts.found(found)

    def _look(self, directory: Path) -> None:
        """While ranks run: tell them when others would be there in their place."""
        self._discover()
        next_ranks = self._assignment()
        if next_ranks == (self._announced or self._running):
            return
        self._announced = next_ranks
        if next_ranks == self._running:
            handover.announce(directory, None)
            return
        change = handover.ADDED * bool(_more(next_ranks, self._running)) | handover.REMOVED * bool(_more(self._running, next_ranks))
        handover.announce(directory, handover.HostsNote(time.time(), change))


def _more(ones: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether some host has more ranks in the first."""
    return any(ones.count(host) > others.count(host) for host in set(ones))


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Between two starts a signal ends us in order: folders are removed."""

    def stop(number: int, _: FrameType | None) -> None:
        warn(f"stopped by {signal.Signals(number).name}")
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
