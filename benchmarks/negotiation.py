"""What does agreeing cost? Rounds of negotiation on this machine, with many names, and played for thousands of ranks.

python benchmarks/negotiation.py --ranks 2 4 8 16 --names 100 10000 --simulated 4096
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from typing import Any

from _jobs import Plan, run_job
from _report import STRONG, amount, arguments, environment, keep, line, logarithmic, panels, short, spread, write
from _simulated import Offer, first_round, known_round

NOTES = (
    "A round is measured as `hvdlite.barrier()`: submit one name that all know, agree, deliver.",
    "announce: the other names for the first time, from submission to delivery; step: the same names again. Nothing moves but the agreement.",
    "played: every rank's negotiator runs in one process, without a transport; CPU time and bytes are those of one rank. Of the round in which the names are "
    "new, a few ranks are played and the others' details are copies.",
    "FORECAST, not a measurement: log2(ranks) hops, plus the played CPU time of a round in which all those names are ready. A hop is the measured round of "
    "2 ranks less the played CPU time of a round with one name: a latency of this machine's memory and this library's polling. Between machines it is longer.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python of the ranks, and with it the MPI")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--names", nargs="+", type=int, default=[0, 100, 1000, 10000], help="names that the ranks know when a round is measured, on 2 ranks")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--simulated", nargs="+", type=int, default=[2, 4, 8, 16, 64, 256, 1024, 4096])
    parser.add_argument("--buckets", type=int, default=32, help="names in the played rounds; a model has a few dozen buckets")
    args = arguments(parser, {"ranks": [2], "names": [0, 100], "rounds": 20, "simulated": [2, 64]})
    args.ranks, args.simulated = (sorted({2, *ranks}) for ranks in (args.ranks, args.simulated))  # the forecast stands on the measured 2
    plan = Plan("negotiation", len(args.ranks) + 2)
    found: dict[str, Any] = {"ranks": {}, "names": {}, "played": {}}
    for ranks in args.ranks:
        with plan.part(f"{ranks} ranks"):
            found["ranks"][ranks] = run_job(args.python, ranks, "negotiation_worker.py", [args.rounds, 0])["0"]
    with plan.part(f"2 ranks and up to {max(args.names)} names"):
        room = {"HVDLITE_CACHE_CAPACITY": str(2 * max(args.names) + 64)}
        found["names"] = run_job(args.python, 2, "negotiation_worker.py", [args.rounds, *args.names], settings=room)
    with plan.part(f"up to {max(args.simulated)} ranks, played"):
        found["played"] = {ranks: played(ranks, args.buckets) for ranks in args.simulated}
    if found["ranks"] and found["names"] and found["played"]:
        report(args, found)
    plan.end()


def played(ranks: int, buckets: int) -> dict[str, float]:
    """What a rank computes and sends in a round of new names, and in one of known names: all of them, or a single one."""
    offers = [Offer(f"optimizer.noname.1.bucket.{number}") for number in range(buckets)]
    new, negotiator = first_round(ranks, offers)
    known, single = known_round(ranks, negotiator, offers), known_round(ranks, negotiator, offers[:1])
    return {"new_cpu_ms": new.cpu_ms, "new_bytes": new.sent_bytes, "cpu_ms": known.cpu_ms, "bytes": known.sent_bytes, "single_cpu_ms": single.cpu_ms}


def forecast(found: dict[str, Any]) -> dict[int, float]:
    """By number of ranks: the time of a round, in ms, if every doubling of the ranks adds one hop like the measured one."""
    hop_ms = statistics.median(found["ranks"][2]["round_ms"]) - found["played"][2]["single_cpu_ms"]
    return {ranks: cost["cpu_ms"] + hop_ms * math.log2(ranks) for ranks, cost in found["played"].items()}


def report(args: argparse.Namespace, found: dict[str, Any]) -> None:
    where = keep("negotiation", args, found | {"forecast_ms": forecast(found)}, environment([args.python]))
    crowded = [f"{ranks} ranks share {where['cores']} cores: they wait for each other's turns." for ranks in found["ranks"] if ranks > where["cores"]]
    title = f"Negotiation; played rounds of {args.buckets} names"
    write("negotiation", title, args, table(found), [*NOTES, *crowded[-1:]], draw(found), where)


def table(found: dict[str, Any]) -> list[list[str]]:
    rows = [["what", "ranks", "other names", "a round, ms", "announce, ms", "step, ms", "CPU a rank, ms", "bytes a rank and round", "FORECAST of a round, ms"]]
    for ranks, cost in found["ranks"].items():
        rows.append(["measured", str(ranks), "0", spread(cost["round_ms"]), "", "", "", amount(cost["round_bytes"]), ""])
    for names, cost in found["names"].items():
        figures = [spread(cost[key]) if int(names) else "" for key in ("announce_ms", "step_ms")]
        rows.append(["measured", "2", names, spread(cost["round_ms"]), *figures, "", amount(cost["round_bytes"]), ""])
    expected = forecast(found)
    for ranks, cost in found["played"].items():
        rows.append(["played, known names", str(ranks), "", "", "", "", short(cost["cpu_ms"]), amount(cost["bytes"]), short(expected[ranks])])
        rows.append(["played, new names", str(ranks), "", "", "", "", short(cost["new_cpu_ms"]), amount(cost["new_bytes"]), ""])
    return rows


def draw(found: dict[str, Any]) -> Any:
    figure, (left, right) = panels(["by ranks", "by known names, 2 ranks"], 2, (6.5, 5))
    line(left, {ranks: cost["round_ms"] for ranks, cost in found["ranks"].items()}, "a round, measured (ranks share the cores)", STRONG[0])
    line(left, {ranks: [cost["cpu_ms"]] for ranks, cost in found["played"].items()}, "CPU of a rank, known names, played", STRONG[1])
    line(left, {ranks: [cost["new_cpu_ms"]] for ranks, cost in found["played"].items()}, "CPU of a rank, new names, played", STRONG[2])
    line(left, {ranks: [ms] for ranks, ms in forecast(found).items()}, "a round, FORECAST", STRONG[3], "--")
    left.set(xscale="log", xlabel="ranks", ylabel="ms")
    left.set_xticks(ticks := sorted(found["played"]), list(map(str, ticks)))
    for key, label, colour in (
        ("round_ms", "a round with one submission", STRONG[0]),
        ("step_ms", "all names again", STRONG[1]),
        ("announce_ms", "all names, new", STRONG[2]),
    ):
        line(right, {int(names): cost[key] for names, cost in found["names"].items() if int(names) or key == "round_ms"}, label, colour)
    right.set(xscale="symlog", xlabel="names the ranks know", ylabel="ms")
    for axis in (left, right):
        logarithmic(axis, "y")
        axis.xaxis.minorticks_off()
        axis.grid(axis="x", alpha=0.3)
        axis.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
