"""What ranks must agree on before the first gradient travels: the compressor, the same parameters, the same first weights."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

import numpy as np

from .arrays import Array
from .collectives import objects_by_rank as objects_by_rank
from .compression import Compressor
from .errors import SettingError
from .process_sets import ProcessSet, global_process_set
from .world import world

LOG = logging.getLogger("hvdlite")

_NUMBER = re.compile(r"_\d+(?=[/_]|$)")  # Keras joins paths by underscores in the names of optimizer variables


def unique_names(paths: Iterable[str]) -> list[str]:
    """Unique names for the paths of Keras variables, the same on ranks that build the same model.

    Keras numbers its layers by what the process has built before (``dense_3``). Those numbers are left out, or a rank that has built a model more
    would be taken for one that trains something else; what a compressor remembers is found again in another process.
    """
    seen: Counter[str] = Counter()
    names = []
    for path in paths:
        name = _NUMBER.sub("", path)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def override(compression: object, resolved: Compressor | None) -> object:
    """The script's choice, unless the environment names another compressor. ``resolved`` is that choice as a compressor."""
    named = world().settings.compression
    if not named:
        return compression
    if resolved is not None and resolved.spec != named:
        LOG.info("HVDLITE_COMPRESSION=%s replaces the script's compression %s", named, resolved.spec)
    return named


def first_difference(
    everyone: Sequence[Sequence[tuple[str, tuple[int, ...], str]]], process_set: ProcessSet = global_process_set, ranks: Sequence[int] = ()
) -> str | None:
    """In words, the first parameter ``(name, shape, dtype)`` that is not the same on every rank; None if all are. ``ranks``: whose, if not all of the set."""
    ranks = ranks or process_set.ranks or range(len(everyone))
    for rank, theirs in zip(ranks, everyone, strict=True):
        for ours, other in zip_longest(everyone[0], theirs, fillvalue=("nothing", (), "")):
            if ours[0] != other[0]:
                return (
                    f"rank {ranks[0]} trains {ours[0]!r} where rank {rank} trains {other[0]!r}; all ranks must train the same parameters, in the same order; "
                    "build the same model and freeze the same parameters on every rank"
                )
            for what, a, b in zip(("shape", "dtype"), ours[1:], other[1:], strict=True):
                if a != b:
                    return f"{ours[0]!r} has {what} {a} on rank {ranks[0]} but {b} on rank {rank}; all ranks must agree; build the same model on every rank"
    return None


def check_start(named: Iterable[tuple[str, Array]], remedy: str, *, is_first: bool = True, process_set: ProcessSet = global_process_set) -> None:
    """Compare the ranks' contiguous weights by digest: ranks that start from different ones never come together.

    ``is_first``: no step was taken yet, so the digest is also that of the start, for ``hvdlite ab`` to compare runs by.

    Raises:
        SettingError: they differ, and ``check_parameters`` is ``error``; ``remedy`` is the call that makes them equal.
    """
    mode = world().settings.check_parameters
    if mode == "off":
        return
    names, digests = _digests(named)
    if is_first:
        world().reports.write_weights(_total(digests))
    gathered = objects_by_rank(digests, process_set=process_set)
    everyone, ranks = list(gathered.values()), list(gathered)
    differing = [name for i, name in enumerate(names) if len({theirs[i] for theirs in everyone if i < len(theirs)}) > 1]
    if not differing:
        return
    rank = next(r for r, theirs in zip(ranks, everyone, strict=True) if theirs != everyone[0])
    problem = (
        f"ranks {ranks[0]} and {rank} start training from different weights: {len(differing)} of {len(names)} parameters differ, first {differing[0]!r}; "
        f"equal weights are expected; call {remedy} before the first step, or set HVDLITE_CHECK_PARAMETERS=off if they should differ"
    )
    if mode == "error":
        raise SettingError(problem)
    if world().topology.rank == ranks[0]:
        LOG.warning(problem)


def note_start(named: Iterable[tuple[str, Array]]) -> None:
    """Leave a digest of the weights before the first step for ``hvdlite ab``, where ranks become equal only after it: rank 0's count."""
    if world().reports.are_written_here:
        world().reports.write_weights(_total(_digests(named)[1]))


_FIRST_LOOK, _LOOK_EVERY = 10, 100  # steps


class WeightsWatch:
    """Under ``hvdlite ab``: whether the ranks still have the same weights, every 100 steps; and what they are when compression begins."""

    def __init__(self) -> None:
        self._step = 0
        self._has_found = False

    def look(self, named: Callable[[], Iterable[tuple[str, Array]]], process_set: ProcessSet = global_process_set) -> None:
        """Every rank calls it before each exchange of an optimizer, with its contiguous weights."""
        here, step = world(), self._step
        self._step += 1
        begins = step == here.settings.compress_after_steps > 0
        is_due = step == _FIRST_LOOK or (step > 0 and step % _LOOK_EVERY == 0)
        if not here.reports.are_wanted or not (begins or is_due):
            return
        names, digests = _digests(named())
        if begins:
            here.reports.write_fork(_total(digests))
        if is_due and here.settings.check_parameters != "off" and not self._has_found:
            gathered = objects_by_rank(digests, process_set=process_set)
            self._compare(step, names, list(gathered.values()), list(gathered))

    def _compare(self, step: int, names: Sequence[str], everyone: Sequence[Sequence[bytes]], ranks: Sequence[int]) -> None:
        differing = [name for name, theirs in zip(names, zip(*everyone, strict=True), strict=True) if len(set(theirs)) > 1]
        if not differing:
            return
        self._has_found = True
        rank = next(r for r, theirs in zip(ranks, everyone, strict=True) if theirs != everyone[0])
        problem = f"ranks {ranks[0]} and {rank} have different weights after {step} steps: {len(differing)} of {len(names)} parameters, first {differing[0]!r}"
        world().reports.write_drift(step, problem)
        if world().topology.rank == ranks[0]:
            LOG.warning("%s; ranks that exchange gradients stay equal; look for what changes weights on some ranks only", problem)


def _digests(named: Iterable[tuple[str, Array]]) -> tuple[list[str], list[bytes]]:
    names, digests = [], []
    for name, array in named:
        names.append(name)
        digests.append(hashlib.blake2b(np.asarray(array).reshape(-1).view(np.uint8).data, digest_size=8).digest())
    return names, digests


def _total(digests: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"".join(digests), digest_size=8).hexdigest()
