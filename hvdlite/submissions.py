"""What is handed to the communication thread, and the promise that is handed back."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from .compression import Step
from .errors import HorovodInternalError
from .members import Members
from .negotiation import Vote
from .transports import WireRequest

Program: TypeAlias = Generator[WireRequest | Step, Any, Any]
"""What an operation does once agreed: yields requests, is sent the answers, returns the result."""


class Operation(Protocol):
    """A collective that a user asked for."""

    name: str
    kind: ClassVar[str]
    signature: bytes
    nbytes: int

    def vote(self) -> Vote:
        """What holds for it on this rank. Called once, on the communication thread."""

    def program(self, vote: Vote) -> Program:
        """Run it; ``vote`` is what holds on every rank."""

    def take_part(self, present: tuple[int, ...] | None, *, counts_all: bool = False) -> None:
        """Before it runs: who does it, in ascending order, where other ranks have joined; None: all. ``counts_all``: a mean is divided by all ranks' number."""

    def why_not(self, joined: Collection[int], members: Members) -> HorovodInternalError | None:
        """What speaks against running it without these; the same on every rank."""

    def fusion_key(self) -> Hashable | None:
        """Ready neighbours with the same key may run as one; None: this one runs alone."""

    def fused(self, operations: Sequence[Any]) -> Program:
        """Run several as one; returns the list of their results."""


class Handle:
    """The promise of a result."""

    num_ranks = 0
    """How many took part, once it is done: all, or those that had not joined."""

    def __init__(self, name: str):
        self.name = name
        self._event = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._event.is_set()

    def wait(self) -> Any:
        """The result, when it is there. Raises what went wrong."""
        self._event.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def settle(self) -> None:
        """Return when :meth:`wait` would return at once, whatever came of it."""
        self._event.wait()

    def deliver(self, result: Any, num_ranks: int) -> None:
        """Fulfil the promise."""
        self._result, self.num_ranks = result, num_ranks
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """Break the promise."""
        self._error = error
        self._event.set()


@dataclass
class Submission:
    """An operation under way, from the call to the delivery."""

    operation: Operation
    handle: Handle
    since: float = field(default_factory=time.monotonic)
    vote: Vote = Vote.ALL

    @property
    def name(self) -> str:
        """Unique among those in flight."""
        return self.operation.name

    @property
    def signature(self) -> bytes:
        """What ranks must agree on."""
        return self.operation.signature
