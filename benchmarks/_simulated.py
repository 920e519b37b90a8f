"""Rounds of negotiation of thousands of ranks, played in one process: what one rank computes and sends."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvdlite.compression import AllGather
from hvdlite.negotiation import Negotiator, Signature, Vote

CAPACITY = 1 << 16
ROUNDS = 5
LISTENERS = 8  # of the ranks that hear news, so many are played: what each does is the same


@dataclass
class Offer:
    """A submission, as a negotiator sees it."""

    name: str
    vote: Vote = Vote.ALL
    signature: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.signature = Signature(self.name, "allreduce", (self.name,), ((1024, 1024),), ("float32",), "Average").encode()


@dataclass
class Cost:
    """Of one rank, in one round."""

    cpu_ms: float = 0.0
    sent_bytes: int = 0

    @contextmanager
    def of_each(self, ranks: int) -> Iterator[None]:
        """Count the time of a block in which so many ranks work one after the other."""
        start = time.perf_counter()
        yield
        self.cpu_ms += 1e3 * (time.perf_counter() - start) / ranks


def first_round(ranks: int, offers: list[Offer]) -> tuple[Cost, Negotiator]:
    """All announce the same names: what it costs a rank, and rank 0 afterwards."""
    negotiators = [Negotiator(rank, ranks, CAPACITY) for rank in range(min(ranks, LISTENERS))]
    cost = Cost()
    with cost.of_each(len(negotiators)):
        rounds = [_offered(negotiator, offers) for negotiator in negotiators]
        requests: list[Any] = [next(round_) for round_ in rounds]
    answer = np.bitwise_and.reduce([request.array for request in requests])
    while requests:
        cost.sent_bytes += requests[0].sent_bytes(ranks)
        with cost.of_each(len(negotiators)):
            requests = [request for round_ in rounds if (request := _sent(round_, answer)) is not None]
        answer = [request.arrays for request in requests[:1]] * ranks if requests and isinstance(requests[0], AllGather) else None
    return cost, negotiators[0]


def known_round(ranks: int, first: Negotiator, offers: list[Offer]) -> Cost:
    """All offer names that all know: what it costs a rank. Every rank is played."""
    stored, cost = pickle.dumps(first), Cost()
    negotiators = [pickle.loads(stored) for _ in range(ranks)]
    for rank, negotiator in enumerate(negotiators):
        negotiator.rank = rank
    for _ in range(ROUNDS):
        with cost.of_each(ranks * ROUNDS):
            rounds = [_offered(negotiator, offers) for negotiator in negotiators]
            requests = [next(round_) for round_ in rounds]
        answer = np.bitwise_and.reduce([request.array for request in requests])
        with cost.of_each(ranks * ROUNDS):
            left = [_sent(round_, answer) for round_ in rounds]
        assert left == [None] * ranks, "a round of known names asks for nothing more"
    cost.sent_bytes = requests[0].sent_bytes(ranks)
    return cost


def _offered(negotiator: Negotiator, offers: list[Offer]) -> Any:
    for offer in offers:
        negotiator.add(offer)
    return negotiator.round()


def _sent(round_: Any, answer: Any) -> Any:
    """The next request; None at the end."""
    try:
        return round_.send(answer)
    except StopIteration:
        return None
