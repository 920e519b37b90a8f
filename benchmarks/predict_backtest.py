"""Back-test of the cost model on the raw log of the GRACE study (Xu et al., ICDCS 2021): calibrate at 10 Gb/s, forecast 1 Gb/s.

python benchmarks/predict_backtest.py grace_runs.csv [MODEL ...]

The file is a table with the columns model, mode, workers, link, backend, method, ratio, memory, collective, samples_per_s and bytes_per_step, a row a run.
Where a configuration was run several times (settings that the log does not tell), its last run counts in every column.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from hvdlite.predict.backtest import Run, Score, backtest

MODELS = ("resnet50", "unet")
RANKS, KNOWN, ASKED = 8, "10g", "1g"
Row = dict[str, str]
Key = tuple[str, ...]


def key_of(row: Row) -> Key:
    """What makes a configuration."""
    return tuple(row[name] for name in ("method", "ratio", "memory", "collective"))


def table(rows: list[Row], mode: str, column: str, link: str = "") -> dict[Key, float]:
    """A column of the runs of one mode, the last run of each configuration."""
    return {key_of(r): float(r[column]) for r in rows if r["mode"] == mode and int(r["workers"]) == RANKS and link in ("", r["link"]) and r[column]}


def score(rows: list[Row]) -> Score:
    """The back-test on the rows of one model."""
    alone = [float(r["samples_per_s"]) for r in rows if r["mode"] == "throughput" and r["workers"] == "1"]
    speeds = {link: table(rows, "throughput", "samples_per_s", link) for link in (KNOWN, ASKED)}
    volumes = table(rows, "data-volume", "bytes_per_step")
    runs = [
        Run(" ".join(filter(None, key)), volumes[key], key[3] == "allgather", {link: RANKS / speeds[link][key] for link in speeds})
        for key in speeds[ASKED]
        if key in speeds[KNOWN] and key in volumes
    ]
    plain = [run for run in runs if run.method.startswith("none ")]
    if not alone or len(plain) != 1:
        raise ValueError("a run of one worker and one without compression are expected on each link")
    return backtest(plain[0], [run for run in runs if run is not plain[0]], 1 / alone[-1], RANKS, known=KNOWN, asked=ASKED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"as the file calls them; {' '.join(MODELS)} by default")
    parser.add_argument("--all", action="store_true", help="show every configuration")
    args = parser.parse_args()
    with args.file.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["backend"] == "mpi"]
    for model in args.models or MODELS:
        try:
            found = score([row for row in rows if row["model"] == model])
        except ValueError as error:
            sys.exit(f"{model}: cannot be tested ({error}); the models of the file are {', '.join(sorted({r['model'] for r in rows}))}")
        print(f"{model}: faster or slower right in {found.num_right} of {len(found.tested)}, median error of the time {100 * found.median_error:.1f} %")
        for t in sorted(found.tested, key=lambda t: t.measured) if args.all else []:
            print(
                f"    {t.method:45} forecast {t.forecast:6.2f}x, measured {t.measured:6.2f}x the time without compression{'' if t.is_sign_right else '  WRONG'}"
            )


if __name__ == "__main__":
    main()
