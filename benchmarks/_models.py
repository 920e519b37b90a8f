"""The models that are trained for their step time, and a step."""

from __future__ import annotations

import torch
from torch import nn

import hvdlite.torch as hvd


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


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def _cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1568, 10))


def _resnet() -> nn.Module:
    """ResNet-18's widths, for small pictures."""
    widths = ((16, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
    blocks = [Residual(inside, outside, stride) for inside, outside, stride in widths]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS = {
    "mlp": (lambda: _mlp(2048), (64, 784)),  # 23 MB
    "small-mlp": (lambda: _mlp(1024), (64, 784)),
    "cnn": (_cnn, (64, 1, 28, 28)),
    "resnet": (_resnet, (8, 3, 16, 16)),
    "lstm": (LastStep, (16, 20, 64)),
}
"""Name -> how to build it, and the shape of a batch."""


class Training:
    """A model, a batch and an optimizer. Calling it is one step."""

    def __init__(self, name: str):
        torch.manual_seed(0)
        build, shape = MODELS[name]
        self.model = build()
        self.inputs, self.labels = torch.randn(shape), torch.randint(0, 10, shape[:1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def distributed(self, compression: str) -> Training:
        """The same, trained by hvdlite."""
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.model.named_parameters(), compression)
        hvd.broadcast_parameters(self.model.state_dict(), 0)
        return self

    def loss(self) -> torch.Tensor:
        """The forward pass."""
        return nn.functional.cross_entropy(self.model(self.inputs), self.labels)

    def __call__(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
