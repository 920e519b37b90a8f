"""The figures of the page, one question a file; :func:`draw` has their order."""

from __future__ import annotations

from dataclasses import dataclass

from ...result import Result
from . import breakdown, intervals, pareto, target, training, volume
from ._drawing import style
from ._picture import Picture

__all__ = ["Picture", "Section", "draw"]


@dataclass(frozen=True)
class Section:
    """Figures that answer one question."""

    title: str
    pictures: list[Picture]


def draw(result: Result) -> list[Section]:
    """What can be drawn of a comparison; questions without an answer are left out."""
    with style():
        sections = {
            "How sure is it?": [intervals.time(result), intervals.metric(result)],
            "What is gained for what?": [pareto.tradeoff(result), target.times(result)],
            "Where does a step's time go?": [breakdown.step(result), volume.wire_bytes(result)],
            "How did training go?": training.curves(result),
            "How faithful is what was applied?": training.fidelity(result),
        }
    drawn = {title: [picture for picture in pictures if picture is not None] for title, pictures in sections.items()}
    return [Section(title, pictures) for title, pictures in drawn.items() if pictures]
