"""The ranks' metrics as one: each counts as much as the samples it was computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import hvdlite

from .variables import as_numpy

VALIDATION = "val_"


class Samples:
    """How many samples this rank has trained and validated on in an epoch, as the model's own mean of the loss counts them."""

    def __init__(self) -> None:
        self.trained: float | None = None
        self.validated: float | None = None

    def begin_validation(self, model: Any) -> None:
        """Inside ``fit``, the model's metrics still hold the training's counts here."""
        self.trained = count_of(model)

    def end_validation(self, model: Any) -> None:
        """The model's metrics hold the validation's counts."""
        self.validated = count_of(model)

    def end_epoch(self, model: Any) -> tuple[float, float]:
        """``(trained, validated)``, and forget both."""
        found = (count_of(model) if self.trained is None else self.trained, self.validated or 0.0)
        self.trained = self.validated = None
        return found


def count_of(model: Any) -> float:
    """Samples in the model's mean of the loss; 1 for a model that keeps none, whose rank then counts as any other."""
    tracker = next((m for m in model.metrics if m.name == "loss" and hasattr(m, "count")), None)
    return 1.0 if tracker is None else float(as_numpy(tracker.count))


def weighted_means(everyone: Sequence[tuple[Mapping[str, float], tuple[float, float]]]) -> dict[str, float]:
    """From every rank's ``(metrics, (samples trained, samples validated))``: the mean of each metric over the ranks that have it.

    Sums go in the order of ranks, so every rank finds the same bits.
    """
    means = {}
    for key in dict.fromkeys(key for logs, _ in everyone for key in logs):
        of_validation = key.startswith(VALIDATION)
        found = [(logs[key], samples[of_validation]) for logs, samples in everyone if key in logs]
        total = sum(weight for _, weight in found)
        means[key] = sum(value * weight for value, weight in found) / total if total else sum(value for value, _ in found) / len(found)
    return means


def numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The metrics that are single numbers."""
    return {key: float(value) for key, value in (logs or {}).items() if isinstance(value, Real) or getattr(value, "shape", None) == ()}


def average_logs(logs: dict[str, Any], samples: tuple[float, float]) -> None:
    """Replace this rank's metrics by those of all, in place; every rank calls it. A metric that only some ranks have appears on all."""
    logs.update(weighted_means(hvdlite.allgather_object((numbers(logs), samples), "keras.metrics")))
