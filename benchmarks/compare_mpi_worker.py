"""The ranks' side of compare_mpi.py: latency and bandwidth of hvdlite's collectives, and training steps. Rank 0 prints one line of JSON."""

import json
import statistics
import time

import numpy as np
import torch
from torch import nn

import hvdlite
import hvdlite.torch as hvd


def median_s(repeats: int, action) -> float:
    times = []
    for _ in range(repeats):
        hvd.barrier()
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def step_ms(model: nn.Module, inputs: torch.Tensor, compression: str, steps: int = 40) -> float:
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters(), compression)
    hvd.broadcast_parameters(model.state_dict(), 0)
    labels, times = torch.randint(0, 10, (len(inputs),)), []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[steps // 4 :])


def main() -> None:
    begun = time.perf_counter()
    hvd.init()
    torch.manual_seed(0)
    small, large = np.ones(1024, np.float32), np.ones(4 << 20, np.float32)
    figures = {
        "barrier (one negotiation round), us": 1e6 * median_s(200, hvd.barrier),
        "allreduce 4 KiB, us": 1e6 * median_s(200, lambda: hvdlite.allreduce_async([small], name="small").wait()),
        "allreduce 16 MiB, ms": 1e3 * median_s(10, lambda: hvdlite.allreduce_async([large], name="large").wait()),
    }
    mlp = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    cnn = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    for compression in ("none", "powersgd:rank=4"):
        figures[f"MLP step, {compression}, ms"] = step_ms(mlp, torch.randn(64, 784), compression)
        figures[f"CNN step, {compression}, ms"] = step_ms(cnn, torch.randn(64, 1, 28, 28), compression)
    figures["inside_s"] = time.perf_counter() - begun
    if hvd.rank() == 0:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
