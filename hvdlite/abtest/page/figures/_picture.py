"""A figure as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Picture:
    """A figure, what it shows, and how to read it."""

    title: str
    caption: str
    svg: Markup
    has_key: bool = False
    """Whether arms are told apart by colour and dashes alone, so that a key is needed."""
