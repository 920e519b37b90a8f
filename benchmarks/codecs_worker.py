"""The one thread of codecs.py: ELEMENTS DENSITY ROUNDS MATRIX_ROWS; prints one line of JSON: codec -> way -> milliseconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _timing import Action, alternated_ms
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from hvdlite import arrays
from hvdlite.arrays import ops
from hvdlite.compression import AllGather, AllReduce, AllToAll, Bucket, Finish, PieceBytes, Start, load
from hvdlite.compression._levels import Levels
from hvdlite.compression._two_sided import Cast
from hvdlite.compression.fp16 import _ScaledHalf
from hvdlite.compression.sign import _Signs

NUM_RANKS = 2  # of which one is played
PLAIN_CALLS = 2  # DDP's PowerSGD insists on beginning with some
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


TORCH = {
    "fp16": torch_cast(torch.float16),
    "float16, unscaled": torch_cast(torch.float16),
    "bf16": torch_cast(torch.bfloat16),
    "int8": torch_levels(256, 127),
    "int4": torch_levels(128, 7),
    "sign": torch_sign,
}


def there_and_back(codec: Any, x: np.ndarray, out: np.ndarray) -> None:
    codec.decode(codec.encode(x), out)


def largest(x: np.ndarray, out: np.ndarray, k: int) -> None:
    index, values = ops(x).largest(x, k)
    out[:] = 0
    ops(x).add_at(out, index, values)


def codecs(x: np.ndarray, density: float) -> dict[str, dict[str, Action]]:
    """By codec: the ways to encode and decode, and what else a bucket goes through."""
    out, tensor, k = np.empty_like(x), torch.from_numpy(x), round(density * x.size)
    again, shares = x.copy(), [x, x[::-1].copy()]
    rows: dict[str, dict[str, Action]] = {
        name: {"compiled": lambda codec=codec: there_and_back(codec, x, out), "torch": lambda name=name: TORCH[name](tensor)}  # type: ignore[misc]
        for name, codec in CODECS.items()
    }
    rows[f"topk {density:.0%}"] = {"compiled": lambda: largest(x, out, k), "torch": lambda: torch_topk(tensor, k)}
    for name, codec in CODECS.items():
        payload = codec.encode(x)
        rows[f"{name}: add to a sum"] = {"compiled": lambda codec=codec, payload=payload: codec.decode(payload, again, arrays.ADD)}  # type: ignore[misc]
    rows["all finite"] = {"compiled": lambda: ops(x).all_finite(x), "torch": lambda: bool(torch.isfinite(tensor).all())}
    rows["sum of 2"] = {
        "compiled": lambda: ops(x).sum_of(shares, [out], 0.5),
        "torch": lambda: torch.add(*map(torch.from_numpy, shares), out=torch.from_numpy(out)).mul_(0.5),
    }
    return rows


class TheirBucket:
    """What DDP hands to its hooks, which cannot be made from Python."""

    def __init__(self, flat: torch.Tensor, rows: int):
        self._flat = flat
        self._gradients = [part.view(rows, rows) for part in flat.split(rows * rows)]

    def buffer(self) -> torch.Tensor:
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        return self._gradients

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def exchanges(x: np.ndarray, rows: int) -> dict[str, dict[str, Action]]:
    """A rank's whole work for one exchange of square matrices, beside DDP's hook for the same."""
    hooks = {
        "fp16": lambda bucket: default_hooks.fp16_compress_hook(dist.group.WORLD, bucket),
        "bf16": lambda bucket: default_hooks.bf16_compress_hook(dist.group.WORLD, bucket),
    }
    for rank in (1, 4):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=PLAIN_CALLS)
        hooks[f"powersgd:rank={rank}"] = lambda bucket, state=state: powerSGD_hook.powerSGD_hook(state, bucket)
    found: dict[str, dict[str, Action]] = {}
    for spec, hook in hooks.items():
        compressor, shapes = load(spec), [(f"matrix {i}", (rows, rows)) for i in range(x.size // rows**2)]
        ours, theirs = Bucket.of(x.copy(), shapes, 0, NUM_RANKS), TheirBucket(torch.from_numpy(x.copy()), rows)
        for _ in range(PLAIN_CALLS):
            hook(theirs).wait()
        found[f"exchange, {spec}"] = {
            "compiled": lambda compressor=compressor, ours=ours: play(compressor.exchange(ours)),  # type: ignore[misc]
            "DDP hook": lambda hook=hook, theirs=theirs: hook(theirs).wait(),  # type: ignore[misc]
        }
    return found


def play(exchange: Any) -> None:
    """Answer as if the other rank had sent the same: nothing is copied, as where payloads are read from shared memory."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration:
            return
        match request:
            case AllReduce():
                answer = request.array
            case AllToAll():
                answer = [request.parts[0]] * NUM_RANKS
            case AllGather() | Start(AllGather()):
                answer = [(request.request if isinstance(request, Start) else request).arrays] * NUM_RANKS
            case PieceBytes():
                answer = 0
            case Finish(token):
                answer = token


def without_kernels(action: Action) -> Action:
    def act() -> None:
        compiled, arrays._kernels = arrays._kernels, lambda: None
        try:
            action()
        finally:
            arrays._kernels = compiled

    return act


def main() -> None:
    elements, density, rounds, matrix_rows = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    rows = codecs(x, density) | exchanges(x, matrix_rows)
    for row in rows.values():
        row["numpy"] = without_kernels(row["compiled"])
    out = np.empty_like(x)
    rows["memcpy"] = {"compiled": lambda: np.copyto(out, x)}
    found = alternated_ms({json.dumps([name, way]): action for name, row in rows.items() for way, action in row.items()}, rounds, 0.0)
    dist.destroy_process_group()
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in rows}
    for key, ms in found.items():
        name, way = json.loads(key)
        figures[name][way] = ms
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
