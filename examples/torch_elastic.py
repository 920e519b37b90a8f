"""Tell two spirals apart, and go on when a rank is lost: kill one with kill -9 while it trains.

hvdliterun -np 2 --min-np 1 python examples/torch_elastic.py
"""

import argparse
import os

import torch
from torch import nn

import hvdlite.torch as hvd

BATCH = 32


def spirals(num_points=4000):
    """Points in the plane, and on which of two spirals each lies."""
    random = torch.Generator().manual_seed(0)
    turn, which = torch.rand(num_points, generator=random) * 9, torch.randint(2, (num_points,), generator=random)
    angle = turn + which * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 9
    return torch.utils.data.TensorDataset(points + 0.01 * torch.randn(num_points, 2, generator=random), which)


@hvd.elastic.run
def train(state, dataset, num_epochs):
    """From wherever the state is to the last epoch."""
    print(f"pid {os.getpid()} is rank {hvd.rank()} of {hvd.size()}: epoch {state.epoch}, {state.sampler.processed_num} samples of it done", flush=True)
    loader = torch.utils.data.DataLoader(dataset, BATCH, sampler=state.sampler)
    while state.epoch < num_epochs:
        for number, (points, which) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(state.model(points), which)
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(number, BATCH)
            state.commit() if number % 10 == 9 else state.check_host_updates()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    hvd.init()
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.003), model.named_parameters())
    dataset = spirals()
    state = hvd.elastic.TorchState(model, optimizer, sampler=hvd.elastic.ElasticSampler(dataset), epoch=0)
    train(state, dataset, args.epochs)
    if hvd.rank() == 0:
        points, which = dataset.tensors
        right = (model(points).argmax(1) == which).float().mean()
        print(f"{args.epochs} epochs on {hvd.size()} ranks: {100 * right:.1f} % right", flush=True)


if __name__ == "__main__":
    main()
