"""The training of shadow_ranking.py: SEED STEPS; the CNN of examples/torch_mnist.py, and its loss over all training digits at the end."""

import sys
from pathlib import Path

import torch
from torch import nn

import hvdlite.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

from torch_mnist import build_model, load_digits

BATCH = 32


def main() -> None:
    seed, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(seed)
    (images, labels), _ = load_digits()
    model = build_model("cnn")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        drawn = torch.randint(len(images), (hvd.size(), BATCH), generator=order)[hvd.rank()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[drawn]), labels[drawn]).backward()
        optimizer.step()
    with torch.no_grad():
        hvd.report(step=steps, loss=nn.functional.cross_entropy(model(images), labels))


if __name__ == "__main__":
    main()
