"""The pytest plugin that run.py loads on every rank: it keeps the ranks in step and writes down what came of each test, one JSON line an event.

One patch: torch's optimizer Muon takes matrices only, and three of Horovod's tests give every optimizer that torch has a model with vectors. They
fail with Horovod itself. Muon is left out of what ``torch.optim.Optimizer.__subclasses__()`` lists.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from hvdlite import settings

_PAUSE_SECONDS = 0.005


def pytest_configure(config):
    directory = Path(os.environ["SUITE_DIRECTORY"])
    config.pluginmanager.register(_Rank(directory, settings.launcher_rank() or 0, int(os.environ["SUITE_RANKS"])))


class _Rank:
    def __init__(self, directory, rank, num_ranks):
        self._directory, self._rank, self._num_ranks = directory, rank, num_ranks
        self._events = (directory / f"events.{rank}").open("a", buffering=1)
        self._done = set(json.loads((directory / "done").read_text()))
        self._num_meetings = 0
        self._outcome = "passed", ""

    @pytest.hookimpl(trylast=True)  # after -k
    def pytest_collection_modifyitems(self, config, items):
        _leave_muon_out()
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in self._done])
        items[:] = [i for i in items if i.nodeid not in self._done]
        self._write(event="collected", tests=[i.nodeid for i in items])

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self._write(event="not_collected", outcome=report.outcome, reason=_reason(report))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self._meet()
        self._outcome = "passed", ""
        self._write(event="start", test=item.nodeid)
        try:
            return (yield)
        finally:
            outcome, reason = self._outcome
            self._write(event="end", test=item.nodeid, outcome=outcome, reason=reason)

    def pytest_runtest_logreport(self, report):
        if report.outcome == "failed" or (report.outcome == "skipped" and self._outcome[0] == "passed"):
            self._outcome = report.outcome, _reason(report)

    def _meet(self):
        """Wait for the other ranks: a test that fails on one of them must not meet the next one."""
        self._num_meetings += 1
        (self._directory / f"meeting.{self._num_meetings}.{self._rank}").touch()
        while len(list(self._directory.glob(f"meeting.{self._num_meetings}.*"))) < self._num_ranks:
            time.sleep(_PAUSE_SECONDS)

    def _write(self, **event):
        self._events.write(json.dumps({"rank": self._rank, **event}) + "\n")


def _reason(report):
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):  # a skip: path, line, reason
        return longrepr[2].removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    return f"{crash.message} ({Path(crash.path).name}:{crash.lineno})" if crash else str(longrepr)


def _leave_muon_out():
    torch = sys.modules.get("torch")  # a file that has not loaded it by now does not test it
    if torch is None:
        return
    kept = [c for c in torch.optim.Optimizer.__subclasses__() if c.__name__ != "Muon"]
    torch.optim.Optimizer.__subclasses__ = staticmethod(lambda: kept)
