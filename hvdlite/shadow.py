"""What compressors would have made of the gradients of an exact run: each is played beside it on every rank, and changes nothing.

The gradients of a bucket are copied before they are averaged. Afterwards each candidate exchanges the copy over the same network, with its own residual and its
own memory, and its mean is compared with the exact one. So it sees what all ranks really have, step after step, as in a run of its own: only that the weights
do not follow it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from .arrays import Array, ops
from .channel import Channel
from .compression import Compressor, load, split_specs
from .errors import SettingError
from .operations import Average, ReduceOp, Sum
from .operations.shadow import Exchanged, ShadowOperation
from .settings import env_name
from .world import World

Layout = Sequence[tuple[str, tuple[int, ...]]]


@dataclass
class Fidelity:
    """Sums over the buckets of a step, of which the figures are quotients; what a candidate leaves uncompressed is in them, too."""

    error: float = 0.0
    """Squared distance from the exact mean."""
    exact: float = 0.0
    estimate: float = 0.0
    product: float = 0.0
    """Squared norms of the exact mean and of the candidate's, and their scalar product."""
    residual: float = 0.0
    given: float = 0.0
    """Squared norms of this rank's residual and of its gradient."""
    wire_bytes: int = 0
    encode_ms: float = 0.0
    decode_ms: float = 0.0

    def figures(self) -> dict[str, float]:
        """``vnmse``: ``|estimate - exact|^2 / |exact|^2``; ``cosine`` of the angle between them; ``residual_ratio``: residual over gradient, of this rank."""
        both = math.sqrt(self.exact * self.estimate)
        quotients = {
            "vnmse": self.error / self.exact if self.exact else 0.0,
            "cosine": self.product / both if both else float(self.exact == self.estimate),
            "residual_ratio": math.sqrt(self.residual / self.given) if self.given else 0.0,
        }
        costs = {name: round(value, 4) for name, value in asdict(self).items() if name in ("wire_bytes", "encode_ms", "decode_ms")}
        return {name: float(f"{value:.6g}") for name, value in quotients.items()} | costs


class Shadow:
    """The candidates beside one optimizer's buckets."""

    def __init__(self, world: World, channel: Channel, name: str, candidates: Sequence[Compressor], every: int):
        self._reports, self._channel, self._name, self._every = world.reports, channel, name, every
        self._candidates = candidates
        self._given: dict[str, Array] = {}
        self._step = 0

    @classmethod
    def beside(cls, world: World, channel: Channel, name: str, compressor: Compressor | None, op: ReduceOp) -> Shadow | None:
        """The shadow that the settings ask for; None if they ask for none.

        Raises:
            SettingError: the gradients beside which it is to run are not exact, or are no mean.
        """
        if not world.settings.shadow:
            return None
        asked = f"{env_name('shadow')}={world.settings.shadow}"
        if compressor is not None and compressor.spec != "none":
            raise SettingError(
                f"{asked} compares with exact gradients, and {name!r} compresses them by {compressor.spec}; no compression is expected; "
                f"set {env_name('compression')}=none"
            )
        if not world.reports.are_wanted:
            raise SettingError(f"{asked} has nowhere to write its figures; a file is expected; set {env_name('report_file')}, or run hvdlite ab --mode shadow")
        if op not in (Average, Sum):
            raise SettingError(f"{asked} needs means or sums, and {name!r} has op={op.name}; Average or Sum is expected; leave the shadow out")
        return cls(world, channel, name, [load(spec) for spec in split_specs(world.settings.shadow)], world.settings.shadow_every)

    def remember(self, name: str, gradient: Array) -> None:
        """Copy what a bucket holds before it is averaged, if this step is one of those that count."""
        if self._step % self._every == 0:
            self._given[name] = ops(gradient).concat([ops(gradient).cast(gradient.reshape(-1), "float32")])

    def compare(self, buckets: Iterable[tuple[str, Array, Layout]], unit: float) -> None:
        """Play the candidates on ``(name, exact result, layout)`` of every bucket; ``unit`` is what results are multiples of the mean by.

        Buckets with gradients that are not finite are left out: no compressor would hear of them.
        """
        self._step += 1
        if not self._given:
            return
        sums = [Fidelity() for _ in self._candidates]
        for name, result, layout in buckets:
            given, exact = self._given.pop(name), ops(result).cast(result.reshape(-1), "float32")
            if not ops(exact).all_finite(exact):
                continue
            exact = exact if unit == 1.0 else exact / unit
            for number, candidate in enumerate(self._candidates):
                self._play(candidate, f"{name}.shadow.{number}", given, exact, layout, sums[number])
        self._given.clear()
        if self._reports.are_written_here and any(total.exact for total in sums):
            figures = {candidate.spec: total.figures() for candidate, total in zip(self._candidates, sums, strict=True)}
            self._reports.write_shadow(self._step, self._name, figures)

    def _play(self, candidate: Compressor, name: str, given: Array, exact: Array, layout: Layout, total: Fidelity) -> None:
        taken, left = split(layout, candidate)
        size = self._channel.topology.size
        total.wire_bytes += round(2 * (size - 1) / size * 4 * sum(stop - start for start, stop in left))
        for start, stop in left:
            rest = square(exact[start:stop])
            total.exact, total.estimate, total.product = total.exact + rest, total.estimate + rest, total.product + rest
        if not taken:
            return
        xp, shapes = ops(given), [part for part in layout if candidate.accepts(part[1])]
        mine = xp.concat([given[start:stop] for start, stop in taken])
        truth = xp.concat([exact[start:stop] for start, stop in taken])
        total.given += square(mine)
        operation = ShadowOperation(name, mine, shapes, size, self._channel.topology.rank, candidate)
        found: Exchanged = self._channel.submit(operation).wait()
        total.wire_bytes += found.sent_bytes
        total.encode_ms += found.encode_ms
        total.decode_ms += found.decode_ms
        if self._reports.are_written_here:
            total.error += square(found.mean - truth)
            total.exact, total.estimate = total.exact + square(truth), total.estimate + square(found.mean)
            total.product += float((found.mean * truth).sum())
            total.residual += candidate.squared_residual([n for n, _ in shapes])


def split(layout: Layout, compressor: Compressor) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where the parts lie that the compressor accepts, and where the others."""
    taken: list[tuple[int, int]] = []
    left: list[tuple[int, int]] = []
    start = 0
    for _, shape in layout:
        stop = start + math.prod(shape)
        (taken if compressor.accepts(shape) else left).append((start, stop))
        start = stop
    return taken, left


def square(vector: Array) -> float:
    """Its squared norm."""
    return float((vector * vector).sum())
