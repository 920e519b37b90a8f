"""How fast are the compressors' codecs, with and without the compiled loops, beside memcpy and beside torch's own operations?

python benchmarks/codecs.py. One thread; every measurement in turn, several times over, so that drift of the machine falls on all alike.
Figures are GB of float32 a second for encoding plus decoding: median, and the slowest and fastest run.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hvdlite import arrays
from hvdlite.arrays import ops
from hvdlite.compression._levels import Levels
from hvdlite.compression._two_sided import Cast
from hvdlite.compression.fp16 import _ScaledHalf
from hvdlite.compression.sign import _Signs

CODECS = {
    "fp16": _ScaledHalf(),
    "float16, unscaled": Cast("float16"),
    "bf16": Cast("bfloat16"),
    "int8": Levels(256, 8),
    "int4": Levels(128, 4),
    "sign": _Signs(256),
}


def torch_cast(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype).to(torch.float32)


def torch_levels(block: int, highest: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def both(x: torch.Tensor) -> torch.Tensor:
        blocks = x.view(-1, block)
        scale = (blocks.abs().amax(dim=1, keepdim=True) / highest).clamp(min=2.0**-126)
        levels = torch.round(blocks / scale).to(torch.int8)
        if highest == 7:
            packed = (levels[:, ::2] + 8).to(torch.uint8) | (levels[:, 1::2] + 8).to(torch.uint8) << 4
            levels = torch.stack(((packed & 15).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8), dim=2)
        return (levels.to(torch.float32).reshape(-1, block) * scale).view(-1)

    return both


def torch_sign(x: torch.Tensor) -> torch.Tensor:
    blocks, weights = x.view(-1, 256), torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    scale = blocks.abs().mean(dim=1, keepdim=True)
    packed = ((blocks < 0).view(-1, 8).to(torch.uint8) * weights).sum(dim=1, dtype=torch.uint8)
    negative = (packed[:, None] & weights) != 0
    return torch.where(negative.view(-1, 256), -scale, scale).view(-1)


def torch_topk(x: torch.Tensor, k: int) -> torch.Tensor:
    index = torch.topk(x.abs(), k, sorted=False).indices
    return torch.zeros_like(x).index_add_(0, index, x[index])


def there_and_back(codec, x: np.ndarray, out: np.ndarray) -> None:
    codec.decode(codec.encode(x), out)


def largest(x: np.ndarray, out: np.ndarray, k: int) -> None:
    index, values = ops(x).largest(x, k)
    out[:] = 0
    ops(x).add_at(out, index, values)


def without_kernels(action: Callable[[], object]) -> Callable[[], None]:
    def act() -> None:
        compiled, arrays._kernels = arrays._kernels, lambda: None
        try:
            action()
        finally:
            arrays._kernels = compiled

    return act


def cases(x: np.ndarray, density: float) -> dict[str, dict[str, Callable[[], object]]]:
    """By codec: the ways to do the same."""
    out, tensor, k = np.empty_like(x), torch.from_numpy(x), round(density * x.size)
    again, shares = x.copy(), [x, x[::-1].copy()]
    theirs = {
        "fp16": torch_cast(torch.float16), "float16, unscaled": torch_cast(torch.float16), "bf16": torch_cast(torch.bfloat16),
        "int8": torch_levels(256, 127), "int4": torch_levels(128, 7), "sign": torch_sign,
    }  # fmt: skip
    ours: dict[str, Callable[[], object]] = {name: lambda codec=codec: there_and_back(codec, x, out) for name, codec in CODECS.items()}
    rows = {name: {"compiled": action, "torch": lambda name=name: theirs[name](tensor)} for name, action in ours.items()}
    rows[f"topk {density:.0%}"] = {"compiled": lambda: largest(x, out, k), "torch": lambda: torch_topk(tensor, k)}
    for name, codec in CODECS.items():
        payload = codec.encode(x)
        rows[f"{name}: add to a sum"] = {"compiled": lambda codec=codec, payload=payload: codec.decode(payload, again, arrays.ADD)}
    rows["all finite"] = {"compiled": lambda: ops(x).all_finite(x), "torch": lambda: bool(torch.isfinite(tensor).all())}
    rows["sum of 2"] = {
        "compiled": lambda: ops(x).sum_of(shares, out, 0.5),
        "torch": lambda: torch.add(*map(torch.from_numpy, shares), out=torch.from_numpy(out)).mul_(0.5),
    }
    for row in rows.values():
        row["numpy"] = without_kernels(row["compiled"])
    rows["memcpy"] = {"compiled": lambda: np.copyto(out, x)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=8 << 20)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--output", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal(args.elements).astype(np.float32)
    rows = cases(x, args.density)
    speeds: dict[str, dict[str, list[float]]] = {name: {way: [] for way in row} for name, row in rows.items()}
    for repeat in range(-1, args.repeats):  # the first round warms up
        for name, row in rows.items():
            for way in list(row) if repeat % 2 else list(row)[::-1]:
                start = time.perf_counter()
                row[way]()
                if repeat >= 0:
                    speeds[name][way].append(x.nbytes / 1e9 / (time.perf_counter() - start))
    median = {name: {way: statistics.median(values) for way, values in row.items()} for name, row in speeds.items()}
    ways = ("compiled", "numpy", "torch")
    print(f"{f'GB/s of {args.elements} float32':30}" + "".join(f"{way:>22}" for way in ways) + f"{'x torch':>9}{'% memcpy':>10}")
    for name, row in speeds.items():
        cells = [f"{median[name][w]:.2f} ({min(row[w]):.2f}-{max(row[w]):.2f})" if w in row else "" for w in ways]
        times = f"{median[name]['compiled'] / median[name]['torch']:.1f}" if "torch" in row else ""
        share = f"{100 * median[name]['compiled'] / median['memcpy']['compiled']:.0f}"
        print(f"{name:30}" + "".join(f"{cell:>22}" for cell in cells) + f"{times:>9}{share:>10}")
    environment = {
        "kernels": arrays.kernels_built(), "cores": os.cpu_count(), "machine": platform.platform(), "python": platform.python_version(),
        "numpy": np.__version__, "torch": torch.__version__,
    }  # fmt: skip
    Path(args.output).mkdir(parents=True, exist_ok=True)
    Path(args.output, "codecs.json").write_text(json.dumps({"environment": environment, "elements": args.elements, "GB/s": speeds}, indent=1))


if __name__ == "__main__":
    main()
