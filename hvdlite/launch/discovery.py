"""Where an elastic job learns which hosts there are: from a fixed list, or from a script that is run again and again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Protocol

from ..errors import LaunchError, SettingError
from . import slots

INTERVAL_SECONDS = 1.0
"""Between two runs of a discovery script."""
_LIMIT_SECONDS = 60.0  # for one run of it


class Discovery(Protocol):
    """Tells which hosts there are."""

    def first(self) -> Mapping[str, int]:
        """Slots by host, at the start of the job.

        Raises:
            LaunchError: it cannot tell.
        """

    def look(self) -> Mapping[str, int] | None:
        """Slots by host when something was learned since the last look; it returns at once."""

    def close(self) -> None:
        """Nobody asks any more."""


class FixedHosts:
    """Always the same."""

    def __init__(self, slots: Mapping[str, int]):
        self._slots = slots

    def first(self) -> Mapping[str, int]:
        """What was given."""
        return self._slots

    def look(self) -> None:
        """Nothing changes."""

    def close(self) -> None:
        """Nothing was begun."""


class ScriptedHosts:
    """What a script prints, a host a line. It runs beside the job, once a second; a run that fails changes nothing."""

    def __init__(self, script: str, slots_per_host: int | None, check: Callable[[Mapping[str, int]], None], warn: Callable[[str], None]):
        self._script, self._slots, self._check, self._warn = script, slots_per_host, check, warn
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self._begun_at = self._next_at = 0.0
        self._complaint = ""

    def first(self) -> Mapping[str, int]:
        """What it prints now.

        Raises:
            LaunchError: it cannot be run, fails, or prints something else than hosts.
        """
        self._begin()
        while not self._ended():
            time.sleep(0.02)
        try:
            return self._read()
        except (OSError, SettingError) as error:
            raise LaunchError(str(error)) from None

    def look(self) -> Mapping[str, int] | None:
        """What it has printed, if a run of it ended since the last look."""
        if self._process is None:
            if time.monotonic() >= self._next_at:
                with contextlib.suppress(LaunchError):
                    self._begin()
            return None
        if not self._ended():
            return None
        try:
            found = self._read()
        except SettingError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._warn(f"{error}; the hosts known before still count")
            return None
        self._complaint = ""
        return found

    def close(self) -> None:
        """End a run that is under way."""
        if self._process is not None:
            self._kill()
            self._process.wait()
            self._forget()

    def _begin(self) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the run
        self._begun_at = time.monotonic()
        self._next_at = self._begun_at + INTERVAL_SECONDS
        try:
            # Through a shell, as by horovodrun: it may have arguments, and need not say what interprets it.
            words = ["/bin/sh", "-c", self._script]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self._printed, start_new_session=True)
        except OSError as error:
            self._printed.close()
            raise LaunchError(f"--host-discovery-script {self._script} cannot be run ({error}); an executable script is expected; check it") from None

    def _ended(self) -> bool:
        assert self._process is not None
        if self._process.poll() is None and time.monotonic() - self._begun_at > _LIMIT_SECONDS:
            self._kill()
            self._process.wait()
        return self._process.poll() is not None

    def _read(self) -> Mapping[str, int]:
        process, printed = self._process, self._printed
        assert process is not None
        assert printed is not None
        printed.seek(0)
        text = printed.read().decode("utf-8", "replace")
        self._forget()
        if process.returncode:
            raise SettingError(
                f"--host-discovery-script {self._script} ended with code {process.returncode}; 0 is expected, with a host:slots a line printed; "
                "run it by hand to see why"
            )
        found = slots.parse(text, self._slots, f"output of {self._script}")
        self._check(found)
        return found

    def _forget(self) -> None:
        if self._printed is not None:
            self._printed.close()
        self._process = self._printed = None

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
