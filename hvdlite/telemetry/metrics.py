"""Counters of one rank: what was sent, what it cost, what the training waited for; and the settings in use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass
class Metrics:
    """Sums since :func:`hvdlite.init`, and what was chosen. The communication thread writes all but the waits and buckets, which are the main thread's."""

    wire_bytes: int = 0
    """Payload bytes this rank sent, indices and scales included, negotiation excluded."""
    control_bytes: int = 0
    """Bytes this rank sent to negotiate."""
    dense_bytes: int = 0
    """What the gradients it exchanged would have taken uncompressed on the wire."""
    exchanges: int = 0
    negotiation_rounds: int = 0
    codec_ms: float = 0.0
    """Time in encoding, decoding and starting messages, on the communication thread."""
    encode_ms: float = 0.0
    """Of it, computing what is sent; sums that are sent on count here."""
    decode_ms: float = 0.0
    """Of it, computing with what has come, after the last message of an exchange began."""
    exposed_ms: float = 0.0
    """Time the training waited for communication: what the backward pass did not hide."""
    exposed_encode_ms: float = 0.0
    """Of this wait, while the communication thread was encoding."""
    exposed_decode_ms: float = 0.0
    """Of this wait, while it was decoding. The rest is the wire: messages under way, and waiting for slower ranks."""
    bucket_bytes: int = 0
    """Size of the buckets in use, those laid out last."""
    slots: int = 0
    """Exchanges in flight at once, at most."""
    steps: int = 0
    """Steps of optimizers whose gradients were exchanged."""
    steps_ms: float = 0.0
    """Time from the end of the first of these steps to the end of the last one."""

    def __post_init__(self) -> None:
        self._first_step_ended = 0.0
        self._waits: tuple[float, float | None] = (0.0, None)
        """Seconds waited, and since when the training waits now. One object, because the communication thread reads it while the training changes it."""

    def stepped(self) -> None:
        """Count a step that has ended."""
        now = time.perf_counter()
        if self.steps == 0:
            self._first_step_ended = now
        self.steps += 1
        self.steps_ms = (now - self._first_step_ended) * 1e3

    def sent(self, num_bytes: int, *, control: bool) -> None:
        """Count what a request takes."""
        if control:
            self.control_bytes += num_bytes
        else:
            self.wire_bytes += num_bytes

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Time a wait of the training."""
        start = time.perf_counter()
        self._waits = (self._waits[0], start)
        try:
            yield
        finally:
            waited = time.perf_counter() - start
            self._waits = (self._waits[0] + waited, None)
            self.exposed_ms += waited * 1e3

    def waited(self) -> float:
        """Seconds of such waits until now, the one under way included. Two calls tell how much of the time between them was waited for."""
        total, since = self._waits
        return total + (time.perf_counter() - since if since is not None else 0.0)

    def coded(self, seconds: float, waited: float, *, is_encoding: bool) -> None:
        """Count computing for an exchange, and how much of it the training waited for."""
        exposed_ms = min(max(waited, 0.0), seconds) * 1e3
        if is_encoding:
            self.encode_ms += seconds * 1e3
            self.exposed_encode_ms += exposed_ms
        else:
            self.decode_ms += seconds * 1e3
            self.exposed_decode_ms += exposed_ms

    def snapshot(self) -> dict[str, float]:
        """The counters by name."""
        return asdict(self)
