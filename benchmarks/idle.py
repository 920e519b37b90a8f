"""What an initialised, idle hvdlite costs: its share of a core, and the speed of a single-thread matmul before and after init().

hvdliterun -np 2 python benchmarks/idle.py
"""

import os
import statistics
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch

import hvdlite.torch as hvd

SECONDS = 4


def matmul_ms(repeats: int = 60) -> list[float]:
    a = torch.randn(512, 512)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        a @ a
        times.append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    torch.set_num_threads(1)
    matmul_ms()
    before = matmul_ms()
    hvd.init()
    hvd.barrier()
    used = time.process_time()
    time.sleep(SECONDS)
    share = 100 * (time.process_time() - used) / SECONDS
    after = matmul_ms()
    for rank in range(hvd.size()):
        if rank == hvd.rank():
            change = 100 * (statistics.median(after) / statistics.median(before) - 1)
            print(f"idle: {share:.2f} % of a core")
            print(f"512x512 matmul: {statistics.median(before):.3f} ms before init, {statistics.median(after):.3f} ms after ({change:+.1f} %)")
        hvd.barrier()


if __name__ == "__main__":
    main()
