"""What the runs of a comparison leave, without running anything; and the answer to it."""

import json

import numpy as np

from hvdlite.abtest import result, runs
from hvdlite.abtest.plan import Plan

PLAN = Plan(("python", "train.py"), ("none", "int8"), 6, 2)


def leave_run(folder, arm, seed, *, loss=0.1, step_s=0.01, weights="w{seed}", code=0, problem="", wire=1000, job=None):
    """A run of 100 steps, of which the training waits half a millisecond each: for 0.1 of encoding, 0.1 of decoding; 0.05 more of both is hidden."""
    here = runs.folder_of(folder, seed, arm)
    here.mkdir(parents=True)
    lines = [{"job": job or {"ranks": "2", "transport": "shared_memory"}}, {"weights": weights.format(seed=seed, arm=arm)}]
    for i in range(1, 101):
        waits = {"exposed_ms": i * 0.5, "encode_ms": i * 0.15, "decode_ms": i * 0.15, "exposed_encode_ms": i * 0.1, "exposed_decode_ms": i * 0.1}
        lines.append({"step": i, "seconds": i * step_s, "wire_bytes": i * wire, "optimizer_steps": i, **waits, "values": {"loss": loss + 1 / i}})
    lines += [{"end": {"wire_bytes": 100 * wire, "exposed_ms": 50.0, "steps": 100, "steps_ms": 99 * step_s * 1e3, "bucket_bytes": 1}}]
    (here / runs.REPORTS).write_text("\n".join(map(json.dumps, lines)))
    runs.keep(runs.Record(arm, seed, code, "2026-01-01T00:00:00+00:00", 3.0, problem), here)


def leave_both(folder, seeds=6, **int8):
    """Runs of both arms, int8 faster and as good."""
    rng = np.random.default_rng(0)
    for seed in range(seeds):
        loss, jitter = 0.1 + 0.01 * rng.normal(), rng.lognormal(0, 0.02)
        leave_run(folder, "none", seed, loss=loss, step_s=0.01 * jitter)
        leave_run(folder, "int8", seed, **{"loss": loss + 0.0001 * rng.normal(), "step_s": 0.006 * jitter * rng.lognormal(0, 0.02), "wire": 250, **int8})


def analysed(folder, plan=PLAN):
    """The answer."""
    found = [runs.read(runs.folder_of(folder, seed, arm), plan) for seed, arm in plan.order()]
    return result.analyse(plan, [run for run in found if run is not None])
