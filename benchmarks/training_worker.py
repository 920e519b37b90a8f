"""One rank of training.py: SIDE (hvdlite or ddp), MODEL, STEPS, ARMS... Rank 0 prints one line of JSON: arm -> median step time in ms."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook


class LastStep(nn.Module):
    """An LSTM's last output, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 512, num_layers=2, batch_first=True), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.short(x))


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model and a batch for it."""
    if name == "mlp":  # 23 MB
        return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)), torch.randn(64, 784)
    if name == "cnn":
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1568, 10)), torch.randn(64, 1, 28, 28)
    if name == "resnet":  # ResNet-18's widths, small pictures
        blocks = [
            Residual(a, b, s) for a, b, s in ((16, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
        ]
        return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), torch.randn(8, 3, 16, 16)
    return LastStep(), torch.randn(16, 20, 64)


def step_ms(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, steps: int) -> float:
    labels, times = torch.randint(0, 10, (len(inputs),)), []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[steps // 4 :])


def ours(name: str, steps: int, arms: list[str]) -> dict[str, float]:
    import hvdlite.torch as hvd

    hvd.init()
    figures = {}
    for arm in arms:
        torch.manual_seed(0)
        model, inputs = build(name)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters(), arm)
        hvd.broadcast_parameters(model.state_dict(), 0)
        figures[arm] = step_ms(model, optimizer, inputs, steps)
    return figures if hvd.rank() == 0 else {}


def peers(name: str, steps: int, arms: list[str]) -> dict[str, float]:
    dist.init_process_group("gloo")
    figures = {}
    model, inputs = build(name)
    if dist.get_rank() == 0:  # alone on its core, while the others wait
        figures["one process"] = step_ms(model, torch.optim.SGD(model.parameters(), 0.01), inputs, steps)
    dist.barrier()
    for arm in arms:
        torch.manual_seed(0)
        model, inputs = build(name)
        one_bucket = "powersgd" in arm  # with several, its collectives come in another order on each rank and gloo aborts
        ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1000 if one_bucket else 25)
        if arm == "ddp fp16":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif one_bucket:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(arm[-1]), start_powerSGD_iter=2)
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        figures[arm] = step_ms(ddp, torch.optim.SGD(ddp.parameters(), 0.01), inputs, steps)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return figures if rank == 0 else {}


def main() -> None:
    torch.set_num_threads(1)
    side, name, steps, arms = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    figures = ours(name, steps, arms) if side == "hvdlite" else peers(name, steps, arms)
    if figures:
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
