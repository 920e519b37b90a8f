"""What a benchmark leaves behind: a table in Markdown, a plot, and the figures with the machine they come from as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from hvdlite.arrays import kernels_built
from hvdlite.launch import mpiexec
from hvdlite.version import VERSION

HERE = Path(__file__).parent
STRONG = ("#d1122f", "#0b5fd0", "#0a8f3c", "#e07b00", "#7b2fc4", "#008b8b")
"""For what is ours."""
MUTED = ("#5f6b76", "#a07f5a", "#8fa3b5", "#b5a8c0", "#93a886")
"""For what is not."""
_WIDE = 3000  # a range on which a number for every decade is enough
_PACKAGES = ("hvdlite", "numpy", "torch", "tensorflow-cpu", "tensorflow", "keras", "mpi4py", "ml_dtypes", "horovod")


def arguments(parser: argparse.ArgumentParser, quick: Mapping[str, Any]) -> argparse.Namespace:
    """The command line, with what every benchmark takes. ``quick`` are the defaults of ``--quick``: does it run at all?"""
    parser.add_argument("--quick", action="store_true", help="as little as possible: shows that it runs, and no figures to rely on")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="folder of the reports")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**quick)
    return parser.parse_args()


def environment(pythons: Iterable[str] = (sys.executable,)) -> dict[str, Any]:
    """Where, with what and by which command the figures were made."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "mpi": [mpi_of(python) for python in pythons],
        "compiled loops": kernels_built(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("HVDLITE_")},
    }


def keep(name: str, args: argparse.Namespace, figures: Any, where: dict[str, Any]) -> dict[str, Any]:
    """Write ``name``.json, first of all: what was measured must outlive a fault in showing it. Returns ``where``."""
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / f"{name}.json").write_text(json.dumps({"environment": where, "figures": figures}, indent=1))
    return where


def write(name: str, title: str, args: argparse.Namespace, table: Sequence[Sequence[str]], notes: Sequence[str], figure: Figure, where: dict[str, Any]) -> None:
    """Write ``name``.md and .png, and print the first."""
    about = (
        f"{where['date']}, hvdlite {VERSION} ({where['commit']}), {where['cpu']}, {where['cores']} cores, {'; '.join(where['mpi'])}, "
        f"torch {where['packages'].get('torch', '-')}, compiled loops: {'yes' if where['compiled loops'] else 'no'}"
    )
    lines = [
        f"# {title}",
        "",
        about,
        "",
        f"`{where['command']}`",
        "",
        *markdown(table),
        "",
        *(f"- {note}" for note in notes),
        "",
        f"![{title}]({name}.png)",
        "",
    ]
    figure.savefig(args.output / f"{name}.png", dpi=110)
    plt.close(figure)
    (args.output / f"{name}.md").write_text("\n".join(lines))
    print("\n".join(lines), flush=True)


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    """The rows, the first of which is the head, in columns that line up as plain text, too."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    head, *rows = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table]
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rows]


def spread(values: Sequence[float]) -> str:
    """Median, and the smallest and largest."""
    return f"{short(statistics.median(values))} ({short(min(values))}-{short(max(values))})"


def short(value: float) -> str:
    """Three digits, and never in powers of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def amount(num_bytes: float) -> str:
    """A number of bytes as people write it."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB"


def panels(titles: Sequence[str], columns: int, size: tuple[float, float]) -> tuple[Figure, list[Any]]:
    """A figure of one panel a title, ``size`` inches each."""
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False, layout="constrained")
    flat = list(axes.flat)
    for axis, title in zip(flat, titles, strict=False):
        axis.set_title(title, fontsize=10)
    for axis in flat[len(titles) :]:
        axis.set_visible(False)
    return figure, flat[: len(titles)]


def colours(names: Iterable[str], is_ours: Callable[[str], bool]) -> dict[str, str]:
    """A colour for each name: strong ones for ours, muted ones for the others."""
    strong, muted = iter(STRONG), iter(MUTED)
    return {name: next(strong if is_ours(name) else muted) for name in names}


def line(axis: Any, points: Mapping[float, Sequence[float]], label: str, colour: str, style: str = "-") -> None:
    """Medians as a line, smallest to largest as a band."""
    places = sorted(points)
    axis.plot(places, [statistics.median(points[p]) for p in places], style, marker="o", markersize=3.5, color=colour, label=label)
    axis.fill_between(places, [min(points[p]) for p in places], [max(points[p]) for p in places], color=colour, alpha=0.15, linewidth=0)


def mpi_of(python: str) -> str:
    """The MPI that a Python loads."""
    found = mpiexec.find(mpiexec.probe(python))
    return f"{found.vendor} {found.version}"


def logarithmic(axis: Any, which: str) -> None:
    """A logarithmic ``x`` or ``y``, with its numbers written out."""
    axis.set(**{f"{which}scale": "log"})
    low, high = axis.get_xlim() if which == "x" else axis.get_ylim()
    scale = axis.xaxis if which == "x" else axis.yaxis
    scale.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < _WIDE else (1,)))
    scale.set_major_formatter(StrMethodFormatter("{x:g}"))
    scale.set_minor_formatter(NullFormatter())
    axis.grid(axis=which, alpha=0.3)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    names = [row.partition(":")[2].strip() for row in path.read_text().splitlines() if row.startswith("model name")] if path.exists() else []
    return names[0] if names else platform.machine()


def _commit() -> str:
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no commit known"
    return done.stdout.strip()
