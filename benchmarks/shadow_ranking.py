"""Does one run of ``hvdlite ab --mode shadow`` put compressors in the order in which whole runs put them?

python benchmarks/shadow_ranking.py. Prints Spearman's and Kendall's rank correlation between vNMSE (shadow) and the loss at the end (full).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _jobs import HERE, Plan
from _report import STRONG, arguments, environment, keep, logarithmic, panels, write
from scipy import stats

ARMS = "int4,topk:density=0.1,powersgd:rank=4,powersgd:rank=2,topk:density=0.01,sign,powersgd:rank=1,topk:density=0.001"
NOTES = (
    "vNMSE: squared distance of the compressor's mean gradient from the exact one over its squared norm; mean over the steps of one exact run.",
    "loss: over all training digits after the last step of a run of its own, mean over the seeds (and the arm's standard deviation).",
    "Compressors with error feedback are compared with each other: what feedback sends late counts as an error here, and is made up for in training.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    args = arguments(parser, {"arms": "int4,topk:density=0.01", "seeds": 1, "steps": 10})
    plan, found = Plan("shadow_ranking", 2), {}
    with tempfile.TemporaryDirectory() as folder:
        for mode, seeds in (("shadow", 1), ("full", args.seeds)):
            with plan.part(f"{mode}, {args.arms}"):
                found[mode] = run_ab(args, mode, seeds, Path(folder, mode))
    if len(found) == 2:
        rows = by_arm(found)
        where = keep("shadow_ranking", args, rows, environment())
        spearman, kendall = correlations(rows)
        notes = [f"Rank correlation over {len(rows)} arms: Spearman {spearman:.3f}, Kendall {kendall:.3f}.", *NOTES]
        write("shadow_ranking", "Order of compressors: one shadow run and whole runs", args, table(rows), notes, draw(rows), where)
    plan.end()


def run_ab(args: argparse.Namespace, mode: str, seeds: int, folder: Path) -> Any:
    options = ["--mode", mode, "--arms", f"none,{args.arms}", "--no-baselines", "--seeds", str(seeds), "-np", "2", "--output", str(folder)]
    worker = [str(HERE / "shadow_ranking_worker.py"), "{seed}", str(args.steps)]
    subprocess.run([sys.executable, "-m", "hvdlite", "ab", *options, "--", *worker], check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "ab.json").read_text())


def by_arm(found: dict[str, Any]) -> list[dict[str, Any]]:
    """An arm a row, the nearest to the exact gradients first."""
    ends = {arm["arm"]: arm for arm in found["full"]["arms"]}
    ranking = found["shadow"]["ranking"]
    return [{"arm": p["arm"], "vnmse": p["vnmse"], "loss": ends[p["arm"]]["metric_mean"], "sd": ends[p["arm"]]["metric_sd"]} for p in ranking]


def correlations(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Spearman's and Kendall's."""
    vnmse, loss = [row["vnmse"] for row in rows], [row["loss"] for row in rows]
    return float(stats.spearmanr(vnmse, loss).statistic), float(stats.kendalltau(vnmse, loss).statistic)


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    order = {row["arm"]: place for place, row in enumerate(sorted(rows, key=lambda row: row["loss"]), 1)}
    cells = [
        [row["arm"], f"{row['vnmse']:.3g}", str(place), f"{row['loss']:.4f}" + (f" ± {row['sd']:.4f}" if row["sd"] else ""), str(order[row["arm"]])]
        for place, row in enumerate(rows, 1)
    ]
    return [["arm", "vNMSE", "place", "loss at the end", "place"], *cells]


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, (axis,) = panels(["one shadow run against whole runs"], 1, (7, 4.5))
    axis.errorbar([r["vnmse"] for r in rows], [r["loss"] for r in rows], [r["sd"] or 0 for r in rows], fmt="o", color=STRONG[1], capsize=3)
    for row in rows:
        axis.annotate(row["arm"], (row["vnmse"], row["loss"]), xytext=(5, 4), textcoords="offset points", fontsize=8)
    logarithmic(axis, "x")
    axis.set_xlabel("vNMSE beside exact training")
    axis.set_ylabel("loss at the end")
    return figure


if __name__ == "__main__":
    main()
