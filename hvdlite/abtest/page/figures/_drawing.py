"""How figures are drawn: matplotlib, as inline SVG whose colours are the page's CSS variables and whose text is text.

Every figure has the same width, for one column of a telephone; a wide screen shows two side by side.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

WIDTH = 400
"""In units of the SVG, of which a letter takes 11."""
_SIZE = 11
_POINTS_PER_INCH = 72

# Colours stand for variables of page.css; matplotlib sees numbers.
INK, MUTED, GRID, PAPER, GOOD = "#010001", "#020002", "#030003", "#040004", "#050005"
ARMS = [f"#0a000{i}" for i in range(8)]
COMPUTE, ENCODE, WIRE, DECODE = "#0b0001", "#0b0002", "#0b0003", "#0b0004"
_VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "line", PAPER: "paper", GOOD: "zone",
    COMPUTE: "compute", ENCODE: "encode", WIRE: "wire", DECODE: "decode",
    **{colour: f"arm{i}" for i, colour in enumerate(ARMS)},
}  # fmt: skip
DASHES = ("solid", (0, (5, 2)), (0, (2, 2)), (0, (7, 2, 2, 2)))
MARKERS = "oDs^vPX*"

_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a metric may be called what its user likes
    "font.size": _SIZE,
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "none",
}


def colour(index: int) -> str:
    """Of the arm with this place in the plan."""
    return ARMS[index % len(ARMS)]


def dashes(index: int) -> Any:
    """The same, told without colour."""
    return DASHES[index % len(DASHES)]


def marker(index: int) -> str:
    """The same, for points."""
    return MARKERS[index % len(MARKERS)]


def style() -> AbstractContextManager[None]:
    """Within it every :class:`Drawing` is made and drawn."""
    context: AbstractContextManager[None] = rc_context(_STYLE)
    return context


class Drawing:
    """A figure with one pair of axes; ``height`` in units of the SVG."""

    def __init__(self, height: float) -> None:
        self._figure = Figure(figsize=(WIDTH / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH, layout="constrained")
        self.axes: Any = self._figure.subplots()

    @property
    def pixels_per_unit(self) -> Any:
        """To know where a point lies: see :meth:`settle`."""
        return self.axes.transData

    def settle(self) -> None:
        """Lay the axes out, so that places on them are known."""
        self._figure.draw_without_rendering()

    def svg(self, name: str, title: str, description: str) -> Markup:
        """What goes into the page. ``name`` is unique on it."""
        text = io.StringIO()
        with rc_context({"svg.hashsalt": name}):
            self._figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        return _for_page(text.getvalue(), name, title, description)


def _for_page(svg: str, name: str, title: str, description: str) -> Markup:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style type=\"text/css\">\*\{[^<]*</style>", "", svg, flags=re.DOTALL)
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    assert view is not None, head
    for number, variable in _VARIABLES.items():
        body = body.replace(number, f"var(--{variable})")
    body = re.sub(r"font: (?:\w+ )?([\d.]+)px [^;\"]*", r"font-size: \1px", body)  # the page's letters, not those that laid it out
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", path[0]), body)
    body = re.sub(r'id="(?=[^"]*")', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"\n\s*", "\n", body)
    label = Markup('<title id="{0}-title">{1}</title><desc id="{0}-text">{2}</desc>').format(name, title, description)
    opening = Markup('<svg class="plot" role="img" aria-labelledby="{0}-title {0}-text" {1}>').format(name, Markup(view[0]))
    return Markup(opening + label + Markup(body))


class Rows(Drawing):
    """One row an arm, its name above what is drawn: names are long, and telephones narrow."""

    _ROW, _FOOT = 44, 46

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(self._ROW * len(names) + self._FOOT)
        self.axes.set_ylim(len(names) - 0.3, -0.72)
        self.axes.set_yticks([])
        self.axes.grid(visible=False, axis="y")
        for row, name in enumerate(names):
            self.write_left(row, name)

    def write_left(self, row: int, text: str) -> None:
        """The name of a row."""
        self.axes.text(0.0, row - 0.34, text, transform=self.axes.get_yaxis_transform(), ha="left", va="center", weight="bold", clip_on=False)

    def write_right(self, row: int, text: str) -> None:
        """The figure of a row."""
        self.axes.text(1.0, row - 0.34, text, transform=self.axes.get_yaxis_transform(), ha="right", va="center", color=MUTED, clip_on=False)
