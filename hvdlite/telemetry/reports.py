"""What a training says about itself: rank 0's JSON lines, and when it has trained enough."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

from ..errors import SettingError
from .metrics import Metrics

COUNTERS = ("wire_bytes", "exposed_ms", "encode_ms", "decode_ms", "exposed_encode_ms", "exposed_decode_ms")
"""What a report says of :class:`~hvdlite.telemetry.metrics.Metrics`."""
_TARGET = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=)\s*(\S+)\s*")


@dataclass(frozen=True)
class StopAt:
    """When a script has trained enough: after ``value`` steps or minutes, or when the metric ``name`` has reached ``value``."""

    kind: Literal["steps", "minutes", "<=", ">="]
    value: float
    name: str = ""

    def reached(self, step: int, seconds: float, values: Mapping[str, float]) -> bool:
        """Whether it is so after ``step`` steps and ``seconds``, with these metrics."""
        if self.kind == "steps":
            return step >= self.value
        if self.kind == "minutes":
            return seconds >= 60 * self.value
        if self.name not in values:
            return False
        return values[self.name] <= self.value if self.kind == "<=" else values[self.name] >= self.value

    @property
    def is_alike_everywhere(self) -> bool:
        """Whether every rank finds out by itself, at the same report. Clocks and metrics differ from rank to rank."""
        return self.kind == "steps"


def parse_stop(written: str) -> StopAt | None:
    """Read ``steps=100``, ``minutes=5``, ``loss<=0.1`` or ``accuracy>=0.9``; None for nothing.

    Raises:
        SettingError: it is none of them.
    """
    if not written.strip():
        return None
    name, equals, number = written.partition("=")
    found = _TARGET.fullmatch(written)
    try:
        if found:
            return StopAt("<=" if found[2] == "<=" else ">=", float(found[3]), found[1])
        if equals and name.strip() == "steps" and int(number) > 0:
            return StopAt("steps", int(number))
        if equals and name.strip() == "minutes" and float(number) > 0:
            return StopAt("minutes", float(number))
    except ValueError:
        pass  # a number that is none: refused below, with what is wrong otherwise
    raise SettingError(f"stop_at={written!r} cannot be read; a limit is expected; write steps=100, minutes=5, loss<=0.1 or accuracy>=0.9")


class Reports:
    """The reports of one rank: counted everywhere, written by rank 0.

    Every line of the file is a JSON object. The first is ``job``: where it runs. A report has ``step``, ``seconds`` since :func:`hvdlite.init`,
    ``optimizer_steps`` and the counters of :data:`COUNTERS` (sums of rank 0 until then) and ``values``; there is one line of ``weights`` for each optimizer, a
    digest of what it starts from; one of ``shadow`` for each step of an optimizer beside which compressors are played (:mod:`hvdlite.shadow`); ``residual``,
    ``fork`` and ``drift`` are what is looked at now and then; the last line is ``end``, all counters.
    """

    def __init__(self, path: str = "", stop_at: StopAt | None = None, rank: int = 0) -> None:
        self.stop_at, self.count = stop_at, 0
        self.are_wanted = bool(path)
        self._file: TextIO | None = None
        if path and rank == 0:
            try:
                self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - closed by end()
            except OSError as error:
                raise SettingError(f"report_file={path!r} cannot be written ({error}); a file in an existing folder is expected; choose another") from None
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._began

    @property
    def are_written_here(self) -> bool:
        """Whether this rank has the file."""
        return self._file is not None

    def write(self, step: int, seconds: float, values: Mapping[str, float], metrics: Metrics) -> None:
        """One report."""
        counters = {name: round(getattr(metrics, name), 3) for name in COUNTERS}
        self._line({"step": step, "seconds": round(seconds, 6), "optimizer_steps": metrics.steps, **counters, "values": dict(values)})

    def write_job(self, facts: Mapping[str, str]) -> None:
        """Where the job runs."""
        self._line({"job": dict(facts)})

    def write_weights(self, digest: str) -> None:
        """What an optimizer starts from."""
        self._line({"weights": digest})

    def write_shadow(self, step: int, optimizer: str, figures: Mapping[str, Mapping[str, float]]) -> None:
        """What each candidate made of the gradients of a step."""
        self._line({"shadow": {"step": step, "seconds": round(self.seconds, 6), "optimizer": optimizer, "figures": figures}})

    def write_residual(self, step: int, optimizer: str, ratio: float) -> None:
        """What a step of compression has left of rank 0's gradients, over these."""
        self._line({"residual": {"step": step, "seconds": round(self.seconds, 6), "optimizer": optimizer, "ratio": float(f"{ratio:.6g}")}})

    def write_fork(self, digest: str) -> None:
        """The weights of an optimizer when compression begins."""
        self._line({"fork": digest})

    def write_drift(self, step: int, problem: str) -> None:
        """The ranks' weights are no longer the same."""
        self._line({"drift": {"step": step, "problem": problem}})

    def end(self, metrics: Metrics) -> None:
        """The last line. Later calls do nothing."""
        self._line({"end": {"seconds": round(self.seconds, 6), **metrics.snapshot()}})
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, line: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
