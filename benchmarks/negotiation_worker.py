"""One rank of negotiation.py: MEETING ROUNDS COUNTS...; rank 0 prints one line of JSON: what a round of negotiation takes.

COUNTS are numbers of names: after so many have been announced, a round with one submission, and a step that submits them all.
"""

import json
import sys
import time

import hvdlite
from hvdlite.operations import BarrierOperation


def timed_ms(action) -> float:
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)


def submit_all(names: list[str]) -> None:
    """Submit a collective that moves nothing under every name, and wait for all: only the agreement takes time."""
    engine = hvdlite.world().engine
    for handle in [engine.submit(BarrierOperation(name)) for name in names]:
        handle.wait()


def main() -> None:
    rounds, counts = int(sys.argv[2]), list(map(int, sys.argv[3:]))
    hvdlite.init()
    hvdlite.barrier()
    figures = {}
    for count in sorted(counts):
        names = [f"layer.{number}.weight" for number in range(count)]
        announced = [timed_ms(lambda names=names: submit_all(names))]
        hvdlite.barrier()
        before = hvdlite.metrics()
        round_ms = [timed_ms(hvdlite.barrier) for _ in range(rounds)]
        after = hvdlite.metrics()
        agreed_rounds = after["negotiation_rounds"] - before["negotiation_rounds"]
        figures[count] = {
            "round_ms": round_ms,
            "announce_ms": announced,
            "step_ms": [timed_ms(lambda names=names: submit_all(names)) for _ in range(3)],
            "round_bytes": (after["control_bytes"] - before["control_bytes"]) / max(1, agreed_rounds),
        }
    if hvdlite.rank() == 0:
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
