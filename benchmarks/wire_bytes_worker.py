"""One rank of wire_bytes.py, on a host of its own: MEETING STEPS ROWS MATRICES COMPRESSORS...; rank 0 prints one line of JSON.

For each compressor: what every rank counted as sent in so many steps, and what the kernel counted on its interface meanwhile.
"""

import json
import sys

import numpy as np

import hvdlite as hvd
from hvdlite.launch.hosts import transmitted_bytes


def exchange(name: str, steps: int, rows: int, matrices: int) -> dict[str, int]:
    parameters = [hvd.Parameter(f"{name}.{i}", (rows, rows), "float32") for i in range(matrices)]
    buckets = hvd.GradientBuckets(hvd.world(), name, parameters, hvd.as_compressor(name))
    gradient = np.random.default_rng(hvd.rank()).standard_normal((rows, rows), np.float32)

    def run(count: int) -> None:
        for _ in range(count):
            for parameter in parameters:
                buckets.hand_over(parameter.name, gradient)
            buckets.finish()
        hvd.barrier()  # everybody has received, so everything has left

    run(2)  # connections are made, and buckets laid out in their order
    before, wire = hvd.metrics(), transmitted_bytes()
    run(steps)
    after = hvd.metrics()
    return {key: int(after[key] - before[key]) for key in ("wire_bytes", "control_bytes")} | {"kernel": transmitted_bytes() - wire}


def main() -> None:
    steps, rows, matrices, names = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
    hvd.init()
    found = {name: hvd.allgather_object(exchange(name, steps, rows, matrices), name=f"{name}.figures") for name in names}
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
