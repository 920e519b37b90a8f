"""One rank of predict_accuracy.py: MEETING MODEL ROUNDS BLOCK_SECONDS ARMS...; rank 0 prints one line of JSON: arm -> milliseconds of single steps."""

import json
import sys
import time

import torch
from _models import Training
from _timing import there_and_back

import hvdlite.torch as hvd

WARM_UP_STEPS = 2
MIN_STEPS = 1


def timed(training: Training) -> float:
    start = time.perf_counter()
    training()
    return time.perf_counter() - start


def main() -> None:
    name, rounds, block_seconds, arms = sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]
    torch.set_num_threads(1)
    hvd.init()
    trainings = {arm: Training(name).distributed(arm) for arm in arms}
    steps = {}
    for arm, training in trainings.items():
        warm = [timed(training) for _ in range(WARM_UP_STEPS)]
        steps[arm] = hvd.broadcast_object(max(MIN_STEPS, int(block_seconds / warm[-1])), 0)
    found, counted = {arm: [] for arm in arms}, {arm: [] for arm in arms}
    for arm in there_and_back(arms, rounds):
        hvd.barrier()
        timed(trainings[arm])  # what the arm before left in the caches
        before = hvd.metrics()
        found[arm] += [1e3 * timed(trainings[arm]) for _ in range(steps[arm])]
        counted[arm].append([(hvd.metrics()[what] - before[what]) / steps[arm] for what in ("exposed_ms", "codec_ms")])
    if hvd.rank() == 0:
        print(json.dumps({"step_ms": found, "counted": counted}), flush=True)


if __name__ == "__main__":
    main()
