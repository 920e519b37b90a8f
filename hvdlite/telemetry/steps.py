"""What a training step is made of, for ``hvdlite predict``: when each gradient is ready, and what the rest of the step takes.

Steps come in two kinds, which take turns. In *held* steps no bucket leaves before the backward pass has ended: nothing runs beside the computation, and
what is measured is the computation alone. In the others buckets leave as always, which shows what the two cost each other. Training goes on as it would:
only the time of sending differs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SettingError

WARM_UP_STEPS = 4
"""Left out: memory is touched for the first time, names are announced, buckets are laid out anew."""
BLOCK_STEPS = 4
"""Steps of one kind in a row. The first one of a block does not count: what it met, the kind before it left."""
GRADIENTS = "gradients.bin"
"""Rank 0's gradients of one step, one after the other, as they lie in memory."""


@dataclass
class StepRecord:
    """One step. Times are seconds since the end of the exchange before it; ``cpu`` is that of the whole process."""

    held: bool
    ready: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Name of a parameter -> (time, CPU) when its gradient was handed over."""
    computed: tuple[float, float] = (0.0, 0.0)
    """The training waits for the exchange."""
    ended: tuple[float, float] = (0.0, 0.0)
    """The exchange is over."""


def file_of(folder: Path, rank: int) -> Path:
    """Where a rank writes what it measured."""
    return folder / f"rank.{rank}.json"


class StepTimes:
    """Times the steps of the first optimizer that exchanges, writes a file a rank, and is done. Other optimizers count as computation."""

    def __init__(self, folder: str, num_steps: int, rank: int):
        self._folder, self._num_steps, self._rank = Path(folder), num_steps, rank
        if not self._folder.is_dir():
            raise SettingError(f"measure_folder={folder!r} is no folder; an existing one is expected; make it, or leave the setting to hvdlite predict")
        self._owner: object | None = None
        self._count = 0  # steps that have begun
        self._records: list[StepRecord] = []
        self._current: StepRecord | None = None
        self._zero = (0.0, 0.0)
        self._began = (0.0, 0.0, 0.0)
        self.is_done = False

    def holds_back(self, owner: object) -> bool:
        """Whether this step's buckets wait for the end of the backward pass."""
        return not self.is_done and owner is self._owner and self._current is not None and self._current.held

    def wants_gradients(self, owner: object) -> bool:
        """Whether this is the step whose gradients are kept: a held one, in which they are still this rank's own."""
        return self._rank == 0 and self.holds_back(owner) and self._count == WARM_UP_STEPS + 2

    def ready(self, owner: object, name: str) -> None:
        """A gradient was handed over."""
        if owner is self._owner and self._current is not None and not self.is_done:
            self._current.ready[name] = self._since()

    def computed(self, owner: object) -> None:
        """The training begins to wait."""
        self._owner = self._owner or owner
        if owner is self._owner and self._current is not None and not self.is_done:
            self._current.computed = self._since()

    def keep_gradients(self, arrays: Sequence[Any]) -> None:
        """Write the gradients, as vectors of bytes."""
        with (self._folder / GRADIENTS).open("wb") as file:
            for array in arrays:
                file.write(array.tobytes())

    def ended(self, owner: object, about: Mapping[str, Any]) -> None:
        """The exchange is over, and a step; after the last one everything is written, with what is known ``about`` the gradients."""
        if owner is not self._owner or self.is_done:
            return
        if self._current is not None:
            self._current.ended = self._since()
            self._records.append(self._current)
        if len(self._records) == self._num_steps:
            self._write(about)
            return
        self._count += 1
        measured = self._count - WARM_UP_STEPS
        self._current = StepRecord(held=(measured - 1) // BLOCK_STEPS % 2 == 0) if measured > 0 else None
        self._zero = _now()
        if measured == 1:
            self._began = (*self._zero, _busy_seconds())

    def _since(self) -> tuple[float, float]:
        wall, cpu = _now()
        return round(wall - self._zero[0], 7), round(cpu - self._zero[1], 7)

    def _write(self, about: Mapping[str, Any]) -> None:
        self.is_done, self._current = True, None
        usage = [now - then for now, then in zip((*_now(), _busy_seconds()), self._began, strict=True)]
        path = file_of(self._folder, self._rank)
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**about, "usage": usage, "steps": [asdict(r) for r in self._records]}), encoding="utf-8")
        os.replace(new, path)


def counting(records: Sequence[StepRecord], *, held: bool) -> list[StepRecord]:
    """The steps of a kind, without the first one of each block."""
    return [r for number, r in enumerate(records) if r.held == held and number % BLOCK_STEPS]


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _busy_seconds() -> float:
    """CPU that everybody on this machine has used, the system included."""
    import psutil  # type: ignore[import-untyped]  # only where a forecast is asked for

    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))
