"""One rank of compare_mpi.py: MEETING ROUNDS BLOCK_SECONDS; rank 0 prints one line of JSON: what -> milliseconds."""

import json
import sys
import time

import numpy as np
import torch
from _models import Training
from _timing import alternated_ms

import hvdlite
import hvdlite.torch as hvd

MODELS = {"MLP": "small-mlp", "CNN": "cnn"}
COMPRESSION = ("none", "powersgd:rank=4")


def main() -> None:
    begun = time.perf_counter()
    rounds, block_seconds = int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    hvd.init()
    small, large = np.zeros(1024, np.float32), np.zeros(4 << 20, np.float32)
    actions = {
        "barrier (one negotiation round)": hvd.barrier,
        "allreduce 4 KiB": lambda: hvdlite.allreduce_async([small], name="small").wait(),
        "allreduce 16 MiB": lambda: hvdlite.allreduce_async([large], name="large").wait(),
    }
    for label, model in MODELS.items():
        for compression in COMPRESSION:
            actions[f"{label} step, {compression}"] = Training(model).distributed(compression)
    found = alternated_ms(actions, rounds, block_seconds, together=hvd.barrier, agreed=lambda mine: hvd.broadcast_object(mine, 0))
    if hvd.rank() == 0:
        print(json.dumps({"ms": found, "inside_s": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    main()
