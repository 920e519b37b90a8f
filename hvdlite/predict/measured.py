"""What was measured, in one object that can be kept: ``measured.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..abtest.files import write_whole
from ..buckets import Parameter
from ..errors import SettingError
from ..telemetry.steps import StepRecord, counting
from ..version import VERSION
from ._played import Begin, Program, Request
from .costs import TransportCosts
from .ranks import Played1


class FromScript(msgspec.Struct, frozen=True):
    """What a rank of the user's script wrote."""

    parameters: tuple[tuple[str, tuple[int, ...], str, int | None], ...]
    size: int
    local_size: int
    bucket_bytes: int
    usage: tuple[float, float, float]
    """While the steps were measured: seconds, this process's CPU, and that of everybody on its machine."""
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
    def others(self) -> float:
        """Share of the machine that something else took while the script was measured."""
        seconds, _, busy = self.ranks[0].usage
        return max(0.0, busy - sum(rank.usage[1] for rank in self.ranks)) / (seconds * self.cores)

    def numbers_of_ranks(self, arm: str) -> list[int]:
        """For which a compressor was timed."""
        return sorted({p.num_ranks for p in self.played if p.arm == arm})

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
        of_arm = [p for p in self.played if p.arm == arm]
        found = [p for p in of_arm if p.num_ranks == num_ranks] or [p for p in of_arm if _is_same_for_any_number(p)]
        if not found:
            known = sorted({p.num_ranks for p in of_arm})
            raise SettingError(
                f"{arm} was not timed for {num_ranks} ranks in an exchange, but for {', '.join(map(str, known)) or 'none'}; "
                "what is asked about must have been measured; measure again with these --arms, --ranks and --hosts"
            )
        return max(found, key=lambda p: (p.piece_bytes > 0) == in_pieces).programs


def _is_same_for_any_number(played: Played1) -> bool:
    """Sums of the same arrays, whoever takes part."""
    return all(step.kind == "allreduce" for program in played.programs for step in program if isinstance(step, (Request, Begin)))


def keep(measured: Measured, path: Path) -> None:
    """Write it, to be asked again."""
    write_whole(path, msgspec.json.encode(measured))


def load(path: Path) -> Measured:
    """Read what :func:`keep` wrote.

    Raises:
        SettingError: it is none, or another version's.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError) as error:
        raise SettingError(f"{str(path)!r} cannot be read ({error}); what hvdlite predict --keep wrote is expected; measure again") from None
    if found.version != VERSION:
        raise SettingError(f"{str(path)!r} is hvdlite {found.version}'s, and this is {VERSION}; the same version is expected; measure again")
    return found
