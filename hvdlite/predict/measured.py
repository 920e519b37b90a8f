"""What was measured, in one object that can be kept: ``measured.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..abtest.files import write_whole
from ..buckets import Parameter
from ..errors import SettingError
from ..telemetry.steps import StepRecord, counting
from ..version import VERSION
from ._played import Program
from .costs import TransportCosts
from .ranks import Found, Played1

MIN_STEPS = 8


class FromScript(msgspec.Struct, frozen=True):
    """What a rank of the user's script wrote."""

    parameters: tuple[tuple[str, tuple[int, ...], str, int | None], ...]
    size: int
    local_size: int
    bucket_bytes: int
    steps: tuple[StepRecord, ...]


class Measured(msgspec.Struct, frozen=True):
    """The training, the compressors, the transports."""

    version: str
    command: tuple[str, ...]
    size: int
    cores: int
    slots: int
    ranks: tuple[FromScript, ...]
    layouts: dict[str, tuple[tuple[str, ...], ...]]
    played: tuple[Played1, ...]
    memory: TransportCosts | None
    """Between the ranks of one machine."""
    network: TransportCosts
    """Between the ranks as if each were alone on its machine."""
    polling: float

    @property
    def cores_per_rank(self) -> float:
        """What a rank had while this was measured."""
        return self.cores / self.size

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return sum(Parameter(name, shape, dtype).nbytes for name, shape, dtype, _ in self.ranks[0].parameters)

    def steps(self, *, held: bool) -> list[tuple[StepRecord, ...]]:
        """The steps of a kind that count: one record a rank."""
        return list(zip(*(counting(rank.steps, held=held) for rank in self.ranks), strict=True))

    def programs(self, arm: str, num_ranks: int, *, in_pieces: bool) -> tuple[Program, ...]:
        """What one rank of so many does for each bucket.

        Raises:
            SettingError: this was not measured.
        """
        found = [p for p in self.played if p.arm == arm and p.num_ranks == num_ranks]
        if not found:
            known = sorted({p.num_ranks for p in self.played if p.arm == arm})
            raise SettingError(
                f"{arm} was not timed for {num_ranks} ranks in an exchange, but for {', '.join(map(str, known)) or 'none'}; "
                "what is asked about must have been measured; measure again with these --arms, --ranks and --hosts"
            )
        return max(found, key=lambda p: (p.piece_bytes > 0) == in_pieces).programs

