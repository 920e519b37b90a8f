"""A program under way on a lane: its requests are begun, and their answers sent to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .compression import Finish, PieceBytes, Start, Step
from .submissions import Program, Submission
from .telemetry.metrics import Metrics
from .transports import CONTROL, Pending, Transport, WireRequest


class Running:
    """A program under way on a lane."""

    def __init__(self, program: Program, transport: Transport, lane: int, metrics: Metrics, submissions: Sequence[Submission] = ()):
        self._program, self._transport, self._lane, self._metrics = program, transport, lane, metrics
        self._pending: Pending | None = None
        self._started: list[Pending] = []
        self.submissions = submissions
        self.finished = False
        self.result: Any = None
        self._resume(None)

    def step(self) -> bool:
        """Advance if the request waited for is done; whether anything moved."""
        if self.finished or self._pending is None:
            return False
        moved = self._progress()
        if not self._pending.done():
            return moved or self._pending.moved
        self._resume(self._pending.answer())
        return True

    def _progress(self) -> bool:
        """Let started requests progress, in the order in which they began; whether anything moved."""
        moved, self._started, started = False, [], self._started
        for pending in started:
            if not pending.done():
                self._started.append(pending)
            moved |= pending.moved
        return moved

    def _resume(self, answer: Any) -> None:
        start, waited, request = time.perf_counter(), self._metrics.waited(), None
        has_received = self._pending is not None and not isinstance(self._pending, _Known)
        try:
            request = self._program.send(answer)
        except StopIteration as stop:
            self.finished, self.result = True, stop.value
        if self._lane != CONTROL:
            is_decoding = has_received and (request is None or isinstance(request, Finish))
            self._metrics.coded(time.perf_counter() - start, self._metrics.waited() - waited, is_encoding=not is_decoding)
        if request is not None:
            self._pending = self._begin(request)
        if self._lane != CONTROL:
            self._metrics.codec_ms += (time.perf_counter() - start) * 1e3

    def _begin(self, request: WireRequest | Step) -> Pending:
        match request:
            case PieceBytes():
                return _Known(self._transport.piece_bytes(self._lane))
            case Start(inner):
                pending = self._begin(inner)
                self._started.append(pending)
                return _Known(pending)
            case Finish(token):
                started: Pending = token
                return started
        self._metrics.sent(self._transport.sent_bytes(request), control=self._lane == CONTROL)
        return self._transport.start(request, self._lane)


@dataclass(frozen=True)
class _Known:
    """What needs no waiting."""

    value: Any
    moved: ClassVar[bool] = True

    def done(self) -> bool:
        return True

    def answer(self) -> Any:
        return self.value
