"""The check of ``hvdlite doctor``: two ranks add numbers. Run as ``python -m hvdlite.launch.check`` under hvdliterun."""

from __future__ import annotations

import sys
import time

import numpy as np

import hvdlite as hvd

ELEMENTS = 1 << 20
ROUNDS = 5


def main() -> int:
    """Average an array over the ranks; 0 if every rank got the right answer."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if size < 2:
        sys.stderr.write("this rank is alone: MPI's launcher and library do not know each other\n")
        return 1
    mine = np.full(ELEMENTS, float(rank), dtype=np.float32)
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        mean = hvd.allreduce(mine, name="doctor")
        seconds.append(time.perf_counter() - start)
    expected = (size - 1) / 2
    if not np.all(np.asarray(mean) == expected):
        sys.stderr.write(f"rank {rank} got {np.asarray(mean)[:3]}... instead of {expected}\n")
        return 1
    if rank == 0:
        best = min(seconds)
        sys.stdout.write(f"{size} ranks averaged {mine.nbytes >> 20} MiB in {best * 1e3:.1f} ms ({mine.nbytes / best / 1e9:.2f} GB/s)\n")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
