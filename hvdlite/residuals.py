"""How large residuals are beside gradients, now and then: error feedback whose residual grows without bound sends less and less of what it should."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .arrays import Array
from .compression import Compressor
from .world import World

_EVERY_STEPS = 20


class ResidualWatch:
    """Under ``hvdlite ab`` rank 0 notes ``|residual| / |gradient|`` of what it compresses itself, in every 20th step of an optimizer."""

    def __init__(self, world: World, name: str):
        self._world, self._name = world, name
        self._step = 0
        self._given: dict[str, float] = {}

    def note(self, name: str, gradient: Array) -> None:
        """A bucket is going to be compressed here."""
        if self._world.reports.are_written_here and self._step % _EVERY_STEPS == 0:
            self._given[name] = float((gradient * gradient).sum())

    def step(self, compressor: Compressor | None, parameters: Sequence[str]) -> None:
        """A step has ended; ``parameters`` are those of the buckets that were noted."""
        self._step += 1
        given = sum(self._given.values())
        self._given.clear()
        if compressor is not None and given > 0 and math.isfinite(given):
            ratio = math.sqrt(compressor.squared_residual(parameters) / given)
            self._world.reports.write_residual(self._step, self._name, ratio)
