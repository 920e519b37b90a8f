"""Which submissions are ready on every rank, and in which order: agreed before a byte of payload moves.

MPI does not check: other dtypes or counts on two ranks give wrong numbers *as success*, or a hang. So every submission carries a
:class:`Signature`, and ranks agree in rounds. A round is one small allreduce (bitwise and) of a vector: flags, who is leaving, which
*known* submissions are ready here, and which of those hold finite values. Only when some rank has something new, a gather of its details
follows. Every rank draws the same conclusions from the same answers, so nobody is in charge.

The round is a generator that yields the same requests as a compressor, so it is tested without MPI, for any number of ranks.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any, Protocol

import msgspec
import numpy as np

from .arrays import Array
from .compression import AllGather, AllReduce, Request
from .errors import EngineError, HorovodInternalError, MismatchError
from .members import Members

MAX_DETAILS_BYTES = 64 << 20
"""Details of new submissions that one rank may send in a round; more is a fault, not a model."""

_WORD = 64
_ALL = ~np.uint64(0)
_NO_NEWS, _WIDE = 1, 2  # bits of the first word


class Signature(msgspec.Struct, array_like=True, frozen=True):
    """What ranks must agree on before they exchange a tensor, or a bucket of them."""

    name: str
    kind: str
    tensors: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    op: str = ""
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    compression: str = ""
    device: str = "cpu"
    ranks: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The bytes that are compared and sent."""
        return _ENCODER.encode(self)


class Vote(enum.IntFlag):
    """What holds for a submission on this rank; the agreement says what holds on every rank."""

    NONE = 0
    FINITE = 1
    """No NaN or infinity, or it does not matter."""
    COMPLETE = 2
    """Every part of the bucket has a gradient."""
    ALL = 3


class _Detail(msgspec.Struct, array_like=True, frozen=True):
    signature: bytes
    vote: int


_ENCODER = msgspec.msgpack.Encoder()
_SIGNATURE = msgspec.msgpack.Decoder(Signature)
_DETAILS = msgspec.msgpack.Decoder(list[_Detail])

_WORDS = {
    "kind": ("an operation", "call the same collective on every rank"),
    "tensors": ("a tensor", "build the same model on every rank"),
    "shapes": ("shape", "give it the same shape on every rank"),
    "dtypes": ("dtype", "give it the same dtype on every rank"),
    "op": ("op", "pass the same op on every rank"),
    "root": ("root_rank", "pass the same root_rank on every rank"),
    "prescale": ("prescale_factor", "pass the same prescale_factor on every rank"),
    "postscale": ("postscale_factor", "pass the same postscale_factor on every rank"),
    "compression": ("compression", "give every rank the same compressor and options"),
    "device": ("device", "keep it on the same kind of device on every rank"),
    "ranks": ("the ranks", "add and remove the same process sets in the same order on every rank"),
}
_BY_TENSOR = ("tensors", "shapes", "dtypes")


class Submitted(Protocol):
    """What a negotiator needs of a submission."""

    @property
    def name(self) -> str:
        """Unique among the submissions in flight."""

    @property
    def signature(self) -> bytes:
        """An encoded :class:`Signature`."""

    @property
    def vote(self) -> Vote:
        """What holds for it on this rank."""


@dataclass
class Agreement:
    """What one round settled, the same on every rank."""

    ready: list[tuple[str, Vote]] = field(default_factory=list)
    """``(name, what holds on every rank)``, in the order in which every rank runs them."""
    failed: list[tuple[str, HorovodInternalError]] = field(default_factory=list)
    leaving: frozenset[int] = frozenset()
    joined: frozenset[int] = frozenset()
    """Ranks that leave what is agreed to the others, until all have joined."""
    last_to_join: int | None = None
    """When all have joined, which is over thereby."""
    wide: bool = False
    """Whether every rank's connection is wide."""

    @property
    def settled_something(self) -> bool:
        """Whether the round moved anything forward."""
        return bool(self.ready or self.failed or self.leaving or self.last_to_join is not None)


class Negotiator:
    """One rank's side of the agreement."""

    def __init__(self, rank: int, num_ranks: int, capacity: int, members: Members | None = None):
        self.rank = rank
        self.num_ranks = num_ranks
        self._members = members or Members(range(num_ranks))
        self.leaving = self.joined = False
        self._has_told_joining = False
        self._joined_before: frozenset[int] = frozenset()  # as agreed last
        self.wide = False
        """Whether this rank's connection is wide; told to the others in every round."""
        self._capacity = capacity
        self._pending: dict[str, Submitted] = {}
        self._told: set[str] = set()
        self._slots: list[str | None] = []
        self._free: list[int] = []
        self._known: OrderedDict[str, tuple[int, bytes]] = OrderedDict()  # least recently used first, as agreed
        self._partial: dict[str, dict[int, _Detail]] = {}  # new names, and the ranks that announced them so far

    def add(self, submission: Submitted) -> None:
        """Offer a submission; it stays pending until a round settles it."""
        self._pending[submission.name] = submission

    def leave(self) -> None:
        """Tell the others, from the next round on, that this rank is done."""
        self._pending.clear()
        self.leaving = True

    def join(self) -> None:
        """From the next round on, agree to all that the other ranks submit, and take no part in it. Nothing of this rank's own is pending."""
        assert not self._pending
        self.joined = True

    def clear(self) -> None:
        """Forget what is pending, or that this rank has joined: it will never be agreed."""
        self._pending.clear()
        self.joined = False

    @property
    def pending(self) -> list[str]:
        """What this rank waits to have agreed, oldest first."""
        return list(self._pending)

    @property
    def has_business(self) -> bool:
        """Whether this rank needs another round."""
        return bool(self._pending) or self.leaving or self.joined

    def round(self) -> Generator[Request, Any, Agreement]:
        """One round. Every rank runs its rounds in the same number and order."""
        new = [s for s in self._pending.values() if s.name not in self._told and not self._is_known(s)]
        joins_now = self.joined and not self._has_told_joining  # what some have announced may be complete without it
        self._has_told_joining = self.joined
        answer = yield AllReduce(self._vector(bool(new) or joins_now), "band")
        agreement = self._read(answer)
        if not int(answer[0]) & _NO_NEWS:  # some rank cleared the bit
            details = _ENCODER.encode([_Detail(s.signature, s.vote) for s in new])
            self._told.update(s.name for s in new)
            mine = np.array([len(details)], np.int64)
            sizes = tuple(int(size[0]) for (size,) in (yield AllGather((mine,))))
            if max(sizes) > MAX_DETAILS_BYTES:
                raise EngineError(
                    f"a rank announced {max(sizes)} bytes of tensor details; at most {MAX_DETAILS_BYTES} are expected; use shorter or fewer names"
                )
            rows = yield AllGather((np.frombuffer(details, np.uint8).copy(),), sizes)
            self._learn([_decode_details(rank, raw.tobytes()) for rank, (raw,) in zip(self._members.ranks, rows, strict=True)], agreement)
        self._count_joined(agreement)
        return agreement

    def _count_joined(self, agreement: Agreement) -> None:
        newly, self._joined_before = agreement.joined - self._joined_before, agreement.joined
        if len(agreement.joined) == self.num_ranks:
            agreement.last_to_join = max(newly)
            self._joined_before = frozenset()
            self.joined = self._has_told_joining = False

    # --- the vector: word 0 news (cleared) and width, then who is leaving (cleared), then who has joined (cleared), then a plane of bits each for
    # ready and for every vote. A rank that has joined sets them all ---

    def _vector(self, has_news: bool) -> Array:
        rank_words, slot_words = self._layout()
        vector = np.zeros(1 + 2 * rank_words + 3 * slot_words, np.uint64)
        vector[0] = (0 if has_news else _NO_NEWS) | (_WIDE if self.wide else 0)
        vector[1 : 1 + 2 * rank_words] = _ALL
        for place, is_so in ((1, self.leaving), (1 + rank_words, self.joined)):
            if is_so:
                vector[place + self.rank // _WORD] &= ~_bit(self.rank)
        ready, finite, complete = planes = vector[1 + 2 * rank_words :].reshape(3, slot_words)
        if self.joined:
            planes[...] = _ALL
        for submission in self._pending.values():
            if self._is_known(submission):
                slot = self._known[submission.name][0]
                for plane, holds in ((ready, True), (finite, Vote.FINITE in submission.vote), (complete, Vote.COMPLETE in submission.vote)):
                    if holds:
                        plane[slot // _WORD] |= _bit(slot)
        return vector

    def _read(self, vector: Array) -> Agreement:
        rank_words, slot_words = self._layout()
        leaving, joined = (frozenset(_set_bits(~vector[start : start + rank_words])) for start in (1, 1 + rank_words))
        agreement = Agreement(leaving=leaving, joined=joined, wide=bool(int(vector[0]) & _WIDE))
        if len(joined) == self.num_ranks:  # they would agree to anything
            return agreement
        ready, finite, complete = vector[1 + 2 * rank_words :].reshape(3, slot_words)
        for slot in _set_bits(ready):
            name = self._slots[slot]
            assert name is not None
            self._known.move_to_end(name)
            self._pending.pop(name, None)
            word, bit = slot // _WORD, _bit(slot)
            vote = (Vote.FINITE if finite[word] & bit else Vote.NONE) | (Vote.COMPLETE if complete[word] & bit else Vote.NONE)
            agreement.ready.append((name, vote))
        return agreement

    def _layout(self) -> tuple[int, int]:
        return -(-self.num_ranks // _WORD), -(-len(self._slots) // _WORD)

    def _is_known(self, submission: Submitted) -> bool:
        return self._known.get(submission.name, (0, b""))[1] == submission.signature

    # --- new names ---

    def _learn(self, announced: list[dict[str, _Detail]], agreement: Agreement) -> None:
        for rank, details in enumerate(announced):
            for name, detail in details.items():
                self._forget(name)  # whoever holds it as known must announce it as well, so that the two can be compared
                self._partial.setdefault(name, {})[rank] = detail
        for name in [n for n, by_rank in self._partial.items() if len(by_rank.keys() | agreement.joined) == self.num_ranks]:
            by_rank = self._partial.pop(name)
            first = by_rank[min(by_rank)]
            self._pending.pop(name, None)
            self._told.discard(name)
            if any(d.signature != first.signature for d in by_rank.values()):
                agreement.failed.append((name, _difference(name, {rank: _SIGNATURE.decode(d.signature) for rank, d in by_rank.items()}, self._members)))
            else:
                self._remember(name, first.signature)
                agreement.ready.append((name, reduce(and_, (Vote(d.vote) for d in by_rank.values()))))

    def _remember(self, name: str, signature: bytes) -> None:
        if len(self._known) >= self._capacity:
            self._forget(next(iter(self._known)))
        if not self._free:
            self._free = list(range(len(self._slots) + _WORD - 1, len(self._slots) - 1, -1))
            self._slots += [None] * _WORD
        slot = self._free.pop()
        self._slots[slot] = name
        self._known[name] = (slot, signature)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known:
            self._slots[known[0]] = None
            self._free.append(known[0])


def _bit(position: int) -> np.uint64:
    return np.uint64(1 << position % _WORD)


def _set_bits(words: Array) -> list[int]:
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def _decode_details(rank: int, raw: bytes) -> dict[str, _Detail]:
    try:
        return {_SIGNATURE.decode(detail.signature).name: detail for detail in _DETAILS.decode(raw)}
    except msgspec.MsgspecError as cause:
        raise EngineError(
            f"rank {rank} sent details that cannot be read ({cause}); the same version of hvdlite is expected on every rank; check with hvdlite doctor"
        ) from cause


def _difference(name: str, by_rank: dict[int, Signature], members: Members) -> MismatchError:
    """The first way in which a rank differs from the first one, put into words."""
    one = min(by_rank)
    first = by_rank[one]
    for rank in sorted(by_rank)[1:]:
        other = by_rank[rank]
        for key, (noun, remedy) in _WORDS.items():
            mine, theirs = getattr(first, key), getattr(other, key)
            if mine != theirs:
                where, noun, a, b = _narrowed(first, other, key, noun) if key in _BY_TENSOR else (name, noun, mine, theirs)
                if key == "root":
                    a, b = (root if root < 0 else members.ranks[root] for root in (mine, theirs))
                return MismatchError(
                    f"{where!r}{members.where} has {noun} {_shown(a)} on rank {members.ranks[one]} but {_shown(b)} on rank {members.ranks[rank]}; "
                    f"all ranks must agree; {remedy}"
                )
    raise AssertionError(f"the signatures of {name!r} differ in nothing that is known")


def _narrowed(first: Signature, other: Signature, key: str, noun: str) -> tuple[str, str, object, object]:
    """Of a bucket or group with many tensors, the one that differs."""
    mine, theirs = getattr(first, key), getattr(other, key)
    place = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if place is None:
        return first.name, "a number of tensors", len(mine), len(theirs)
    where = first.name if key == "tensors" or not first.tensors else first.tensors[place]
    return where, noun, mine[place], theirs[place]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join("any" if v == -1 else str(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value) if isinstance(value, str) else str(value)
