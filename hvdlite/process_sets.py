"""Process sets: some of the ranks, that communicate among themselves. Names, arguments and numbers are Horovod's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from .errors import MismatchError, SettingError
from .operations import AllGatherOperation
from .orders import AddSet, RemoveSet
from .transports.mpi import ranks_of
from .world import World, is_initialized, world
from .world import init as init_world

DYNAMIC = "dynamic"
"""What Horovod's scripts pass to be allowed to add sets later; here they always are."""


class ProcessSet:
    """Some of the ranks. Registered with :func:`init` or :func:`add_process_set`, it is passed as ``process_set=`` to collectives.

    Args:
        ranks_or_comm: numbers of ranks, in any order; or an ``mpi4py`` communicator, which only :func:`init` takes.
    """

    process_set_id: int | None = None
    """Its number, the same on every rank; None while it is not registered."""
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any):
        self._ranks: list[int] | None = None
        if isinstance(ranks_or_comm, Iterable):
            ranks = list(ranks_or_comm)
            if not all(isinstance(r, int | np.integer) and not isinstance(r, bool) for r in ranks):
                raise SettingError(f"ProcessSet({ranks}); numbers of ranks, or an mpi4py communicator, are expected; pass e.g. [0, 1]")
            self._ranks = sorted(int(r) for r in ranks)
        elif hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        else:
            raise SettingError(f"ProcessSet({ranks_or_comm!r}); a list of numbers of ranks, or an mpi4py communicator, is expected; pass e.g. [0, 1]")

    @property
    def ranks(self) -> list[int] | None:
        """Its ranks, in ascending order; None for a communicator that is not registered."""
        return self._ranks

    def included(self) -> bool | None:
        """Whether this rank belongs to it; None for a communicator that is not registered."""
        return None if self.ranks is None else world().topology.rank in self.ranks

    def size(self) -> int | None:
        """How many ranks it has; None while it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's number in the set, from 0; None while it is not registered.

        Collectives are not told this number: ``root_rank`` of a broadcast is a number among all ranks.

        Raises:
            ProcessSetError: this rank is not in the set.
        """
        return None if self.process_set_id is None else world().channel(self).topology.rank

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class _Everyone(ProcessSet):
    """All ranks; of what they are it asks the world."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__(())

    @property
    def ranks(self) -> list[int]:
        """All of them; none before :func:`init`."""
        return list(range(world().topology.size)) if is_initialized() else []

    @property
    def mpi_comm(self) -> Any:
        """The communicator that :func:`init` was given."""
        return world().comm if is_initialized() else None

    def size(self) -> int:
        """The number of processes."""
        return world().topology.size

    def rank(self) -> int:
        """This process's number."""
        return world().topology.rank


global_process_set = _Everyone()
"""All ranks: what collectives communicate among unless they are given another set."""


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job. A second call joins nothing, but still registers process sets.

    Args:
        comm: an ``mpi4py`` communicator to use instead of all processes.
        process_sets: sets to register, the same on every rank, but that a communicator stands on each rank for the set that this rank is in. ``"dynamic"``
            registers none; sets may be added at any time.
    Raises:
        WorldSizeError: the environment promises several processes and MPI sees one.
        MissingDependencyError: MPI is needed and absent.
        SettingError: a set is given twice, or cannot be. This process has joined the job all the same, as with Horovod.
        MismatchError: ranks give different sets.
    """
    sets = _checked(process_sets)
    init_world(comm)
    if sets:
        _register(world(), sets)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set. Every rank calls it with the same ranks, those outside the set too, while collectives may be under way.

    Args:
        process_set: a set, or numbers of ranks.
    Returns:
        The set, ready for use.
    Raises:
        SettingError: there is a set of these ranks, or it names ranks that do not exist.
        MismatchError: ranks add different sets; on every rank.
        NotImplementedError: the set was made from a communicator.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if made.ranks is None:
        raise NotImplementedError(
            "add_process_set() was given a set made from a communicator; a list of ranks is expected after init(); pass them, or give the set to hvd.init()"
        )
    made.process_set_id = _add(world(), made.ranks)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set. Every rank calls it; what all ranks of the set have submitted by then is done first, the rest fails.

    Returns:
        False for a set that is not registered, and for that of all ranks, which stays.
    """
    if not process_set.process_set_id:
        return False
    engine = world().engine
    order = RemoveSet(engine.channel.auto_name("process_set"), process_set.process_set_id, engine.sets)
    removed = bool(engine.submit(order).wait())
    process_set.process_set_id = None
    return removed


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every registered set, by its number."""
    return world().engine.sets.ranks()


def _add(current: World, ranks: Sequence[int]) -> int:
    engine = current.engine
    found = engine.submit(AddSet(engine.channel.auto_name("process_set"), tuple(ranks), engine.sets)).wait()
    if isinstance(found, str):
        raise SettingError(found)
    return int(found)


def _checked(process_sets: Any) -> list[ProcessSet]:
    if process_sets is None or (isinstance(process_sets, str) and process_sets.lower() == DYNAMIC):
        return []
    if isinstance(process_sets, str) or not isinstance(process_sets, Iterable):
        raise SettingError(f"process_sets={process_sets!r}; a list of hvd.ProcessSet, or {DYNAMIC!r}, is expected; pass e.g. [hvd.ProcessSet([0, 1])]")
    sets = list(process_sets)
    for entry in sets:
        if not isinstance(entry, ProcessSet):
            raise SettingError(f"process_sets holds {entry!r}; objects of hvd.ProcessSet are expected; pass e.g. [hvd.ProcessSet([0, 1])]")
    return sets


def _register(current: World, sets: Sequence[ProcessSet]) -> None:
    """Register what is not registered yet, in the order of the list; then give the sets their numbers, each number to one."""
    mine = [_ranks_of(s, current) for s in sets]
    everyone = _everyones(current, [(ranks, s.mpi_comm is not None) for s, ranks in zip(sets, mine, strict=True)])
    _check_alike(everyone)
    for entries in zip(*everyone, strict=True):
        for ranks, _ in entries:
            if current.engine.sets.find(ranks) is None:
                _add(current, ranks)
    seen = {0}
    for number, (process_set, ranks) in enumerate(zip(sets, mine, strict=True)):
        set_id = current.engine.sets.find(ranks)
        if set_id in seen:
            raise SettingError(
                f"process_sets entry number {number} is a duplicate: {process_set}; sets that differ from each other and from that of all ranks are expected; "
                "leave it out"
            )
        assert set_id is not None
        seen.add(set_id)
        process_set._ranks, process_set.process_set_id = list(ranks), set_id


def _ranks_of(process_set: ProcessSet, current: World) -> list[int]:
    return ranks_of(process_set.mpi_comm, current.comm) if process_set.ranks is None else process_set.ranks


def _everyones(current: World, mine: list[tuple[list[int], bool]]) -> list[list[tuple[list[int], bool]]]:
    """What each rank gives: the ranks of its sets, and whether they came from a communicator."""
    raw = np.frombuffer(msgspec.msgpack.encode(mine), np.uint8).copy()
    channel = current.engine.channel
    whole, lengths = channel.submit(AllGatherOperation(channel.auto_name("process_sets"), raw, channel.topology.size)).wait()
    ends = np.cumsum(lengths)
    return [msgspec.msgpack.decode(whole[end - n : end].tobytes(), type=list[tuple[list[int], bool]]) for end, n in zip(ends, lengths, strict=True)]


def _check_alike(everyone: Sequence[Sequence[tuple[list[int], bool]]]) -> None:
    """Raise, on every rank, where ranks give different sets; those of communicators may differ."""
    for rank, theirs in enumerate(everyone):
        if len(theirs) != len(everyone[0]):
            raise MismatchError(
                f"init() is given {len(everyone[0])} process sets on rank 0 but {len(theirs)} on rank {rank}; all ranks must agree; "
                "give every rank the same process_sets"
            )
        for number, ((ours, ours_is_comm), (other, other_is_comm)) in enumerate(zip(everyone[0], theirs, strict=True)):
            if ours != other and not (ours_is_comm and other_is_comm):
                raise MismatchError(
                    f"process_sets entry number {number} has the ranks {ours} on rank 0 but {other} on rank {rank}; all ranks must agree; "
                    "give every rank the same process_sets"
                )
