"""``ab.html``: the answer on one page that needs nothing else, made from what ``ab.json`` holds."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..files import write_whole
from ..plan import Plan
from ..recommendation import recommend
from ..result import Result
from ..words import baseline, missing, rule, sentences, where
from . import tables
from .figures import draw

_LOOKS = {
    "faster and not worse": ("good", "\N{CHECK MARK}"),
    "faster but worse": ("mixed", "!"),
    "slower": ("bad", "\N{MULTIPLICATION X}"),
    "undecided": ("open", "?"),
}
"""Of a verdict: a class of page.css, and a sign for those who see no colours."""


def render(result: Result) -> str:
    """The page. Whatever a user named is escaped."""
    loader = PackageLoader(__package__, ".")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return templates.get_template("page.html.jinja").render(
        result=result,
        plan=result.plan,
        where=where(result.plan),
        machine={"hvdlite": result.version, **result.machine},
        style=Markup(files(__package__).joinpath("page.css").read_text(encoding="utf-8")),
        looks=_LOOKS,
        advice=recommend(result),
        said={arm.arm: sentences(arm, result) for arm in result.arms},
        baseline=baseline(result),
        rule=rule(result),
        missing=missing(result),
        sections=draw(result),
        arms=tables.arms(result),
        tests=tables.tests(result),
        runs=tables.runs(result),
        command=_command(result.plan),
    )


def write(result: Result, path: Path) -> None:
    """The page as a file.

    Raises:
        HvdliteError: it cannot be written.
    """
    write_whole(path, render(result).encode())


def _command(plan: Plan) -> str:
    """What to type for the same comparison, an option a line."""
    lines = [shlex.join(["hvdlite", "ab"]), *map(shlex.join, plan.options()), "-- " + shlex.join(plan.command)]
    return " \\\n    ".join(lines)
