"""What an initialized world costs while it has nothing to do, and that it keeps nothing."""

import gc
import time

import numpy as np
import psutil
import pytest

import hvdlite as hvd


def busy_share(seconds: float) -> float:
    start, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - start)


def test_an_idle_process_uses_next_to_nothing():
    hvd.barrier()
    time.sleep(0.2)
    assert busy_share(2.0) < 0.02


def test_waiting_for_a_slow_rank_is_patient(rank, size):
    hvd.barrier()
    if size > 1 and rank == size - 1:
        time.sleep(1.5)
        hvd.allreduce(np.ones(4), name="slow")
        return
    handle = hvd.allreduce_async([np.ones(4)], name="slow")
    assert busy_share(1.3) < 0.2
    handle.wait()


def matmul_seconds() -> float:
    """CPU seconds, so that other processes of a busy machine do not count."""
    a = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    best = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(20):
            a @ a
        best.append(time.thread_time() - start)
    return min(best)


def test_the_users_arithmetic_is_not_slowed_down():
    hvd.barrier()
    with_world = matmul_seconds()
    hvd.barrier()
    hvd.shutdown()
    without = matmul_seconds()
    hvd.init()
    assert with_world < 1.5 * without + 0.01


@pytest.mark.parametrize("spec", [None, "powersgd:rank=2"])
def test_a_thousand_steps_leak_nothing(spec):
    parameters = [hvd.Parameter("weight", (64, 64), "float32"), hvd.Parameter("bias", (64,), "float32")]
    buckets = hvd.GradientBuckets(hvd.world(), f"leak.{spec}", parameters, hvd.as_compressor(spec))
    names = [p.name for p in parameters]

    def steps(count: int) -> None:
        for _ in range(count):
            for name in names:
                buckets.view(name)[...] = 1
                buckets.mark_ready(name)
            buckets.finish()

    process = psutil.Process()
    steps(100)
    gc.collect()
    threads, files, before = process.num_threads(), process.num_fds(), process.memory_info().rss
    steps(1000 if spec is None else 200)
    gc.collect()
    assert process.memory_info().rss - before < 4 << 20
    assert (process.num_threads(), process.num_fds()) == (threads, files)
    assert not hvd.world().engine.channel._in_flight
