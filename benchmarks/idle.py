"""What an initialised, idle hvdlite costs: its share of a core, and the speed of a single-thread matmul with and without it.

hvdliterun -np 2 python benchmarks/idle.py
"""

import statistics
import time

import torch

import hvdlite.torch as hvd

SECONDS = 4
ROUNDS = 12


def matmul_ms(repeats: int = 100) -> float:
    a, out = torch.randn(512, 512), torch.empty(512, 512)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def asleep() -> list[float]:
    time.sleep(1)
    return []


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    measures = hvd.rank() == 0  # the other ranks wait, idle, so that the machine is this rank's
    matmul_ms()
    on, off = [], []
    for _ in range(ROUNDS):  # in turn: the machine's own drift cancels
        hvd.barrier()
        on += [matmul_ms()] if measures else asleep()
        hvd.shutdown()
        off += [matmul_ms()] if measures else asleep()
        hvd.init()
    hvd.barrier()
    used = time.process_time()
    time.sleep(SECONDS)
    print(f"idle: {100 * (time.process_time() - used) / SECONDS:.2f} % of a core")
    if measures:
        change = statistics.median(a / b for a, b in zip(on, off, strict=True))
        print(f"512x512 matmul: {statistics.median(off):.3f} ms without hvdlite, {statistics.median(on):.3f} ms with it, median ratio {change:.3f}")


if __name__ == "__main__":
    main()
