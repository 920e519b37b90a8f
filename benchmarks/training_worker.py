"""One rank of training.py: MEETING MODEL ROUNDS BLOCK_SECONDS ARMS...; rank 0 prints one line of JSON.

An arm is a compressor of hvdlite, "ddp none", "ddp fp16" or "ddp powersgd4", or one process without communication: "one process".
"""

import json
import sys

import torch
import torch.distributed as dist
from _models import MODELS, Training
from _timing import Action, alternated_ms
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import hvdlite.torch as hvd

ONE_PROCESS, FORWARD = "one process", "forward"


def ddp(name: str, arm: str) -> Training:
    training = Training(name)
    one_bucket = "powersgd" in arm  # with several, its collectives come in another order on each rank and gloo aborts
    training.model = nn.parallel.DistributedDataParallel(training.model, gradient_as_bucket_view=True, bucket_cap_mb=1000 if one_bucket else 25)
    if arm == "ddp fp16":
        training.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif one_bucket:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(arm[-1]), start_powerSGD_iter=2)
        training.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return training


def steps(name: str, arms: list[str]) -> dict[str, Action]:
    """What a turn of each arm runs."""
    alone, found = Training(name), {}
    for arm in arms:
        if arm == ONE_PROCESS:
            found[arm] = alone if hvd.rank() == 0 else lambda: None  # alone on its core, while the others wait
        else:
            found[arm] = ddp(name, arm) if arm.startswith("ddp ") else Training(name).distributed(arm)
    return found | {FORWARD: alone.loss}


def step_bytes(training: Action) -> float:
    """What this rank sends in a step, as hvdlite counts it."""
    before = hvd.metrics()["wire_bytes"]
    training()
    return hvd.metrics()["wire_bytes"] - before


def main() -> None:
    meeting, name, rounds, block_seconds, arms = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())
    found = steps(name, arms)
    for action in found.values():
        action()  # beside the two calls of the timing: gradients are laid out anew, and PowerSGD begins, after a few steps
    step_ms = alternated_ms(found, rounds, block_seconds, together=hvd.barrier, agreed=lambda mine: hvd.broadcast_object(mine, 0))
    sent = {arm: step_bytes(action) for arm, action in found.items() if arm not in (ONE_PROCESS, FORWARD) and not arm.startswith("ddp ")}
    if hvd.rank() == 0:
        forward_ms, batch = step_ms.pop(FORWARD), MODELS[name][1][0]
        print(json.dumps({"step_ms": step_ms, "forward_ms": forward_ms, "step_bytes": sent, "batch": batch}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
