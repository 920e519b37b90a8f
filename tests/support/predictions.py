"""A measurement made up for tests of forecasts: every number is known, and the arms' programs come from real exchanges."""

import numpy as np

from hvdlite.buckets import Parameter, plan
from hvdlite.compression import load
from hvdlite.negotiation import Vote
from hvdlite.operations import AllReduceOperation, Average
from hvdlite.predict._played import Played, Work
from hvdlite.predict.costs import TransportCosts
from hvdlite.predict.measured import FromScript, Measured
from hvdlite.predict.ranks import PIECES, Played1, Sample, is_gathered
from hvdlite.telemetry.steps import BLOCK_STEPS, StepRecord
from hvdlite.version import VERSION

ARMS = ("none", "fp16", "int8", "topk:density=0.01", "powersgd:rank=4")
PARAMETERS = [Parameter("a.weight", (512, 512), "float32"), Parameter("a.bias", (512,), "float32"), Parameter("b.weight", (256, 512), "float32")]
BACKWARD = {"a.weight": 0.010, "a.bias": 0.011, "b.weight": 0.018}
"""Seconds from the beginning of a step until a gradient is ready."""
COMPUTED = 0.020
CODEC_SECONDS_PER_BYTE = 1e-10
CPU_SECONDS_PER_BYTE = 2e-10
ROUND_SECONDS = 1e-4


def played(arm: str, num_ranks: int, piece_bytes: int) -> tuple[Played1, bool]:
    """The exchanges of an arm, with codecs that take the same time a byte each, but ``none``'s, which takes none; and whether it goes in pieces."""
    play, programs = Played(num_ranks, piece_bytes), []
    for number, bucket in enumerate(plan(PARAMETERS, load(arm), 1 << 20)):
        flat = np.random.default_rng(number).normal(size=sum(p.num_elements for p in bucket.parameters)).astype(np.float32)
        layout = [(p.name, p.shape) for p in bucket.parameters]
        compressor = load(arm) if bucket.compressed else None
        operation = AllReduceOperation(f"bucket.{number}", [flat], Average, num_ranks, 0, compressor=compressor, layout=layout)
        steps = play(operation.program(Vote.ALL))
        work = 0 if arm == "none" else CODEC_SECONDS_PER_BYTE * flat.nbytes / sum(isinstance(s, Work) for s in steps)
        programs.append(tuple(Work(work) if isinstance(s, Work) else s for s in steps))
    return Played1(arm, num_ranks, piece_bytes, tuple(programs)), play.asks_for_pieces


def transport(num_ranks: int, *, is_memory: bool) -> TransportCosts:
    """Limited by copying, 10 microseconds and ``CPU_SECONDS_PER_BYTE`` a byte of the request."""
    cpu = [(kind, size, 1e-5 + CPU_SECONDS_PER_BYTE * size) for kind in ("allreduce", "allgather", "alltoall") for size in (1 << 10, 1 << 20, 1 << 24)]
    samples = [Sample(kind, size, seconds, seconds) for kind, size, seconds in cpu for _ in range(3)]
    return TransportCosts.of(samples, [ROUND_SECONDS] * 5, [3 * ROUND_SECONDS] * 5, num_ranks, is_memory=is_memory)


def made_up(size: int = 2, cores: int = 8, num_ranks: tuple[int, ...] = (2, 4), arms: tuple[str, ...] = ARMS, slower: float = 1.0) -> Measured:
    """Steps that compute for ``slower`` times 20 ms, each a little more than the one before, and nothing that slows them beside an exchange."""
    records = []
    for number in range(4 * BLOCK_STEPS):
        factor = slower * (1 + 0.001 * number)
        ready = {name: (factor * at, factor * at) for name, at in BACKWARD.items()}
        records.append(StepRecord(number // BLOCK_STEPS % 2 == 0, ready, (factor * COMPUTED,) * 2, (factor * COMPUTED + 1e-3,) * 2))
    parameters = tuple((p.name, p.shape, p.dtype, None) for p in PARAMETERS)
    ranks = tuple(FromScript(parameters, size, size, 1 << 20, (1.0, 1.0, float(size)), tuple(records)) for _ in range(size))
    found = []
    for arm in arms:
        for number in sorted({*num_ranks, *((2, 4, 8, 16, 32, 64) if is_gathered(load(arm)) else ())}):
            for piece_bytes in PIECES:
                of_arm, in_pieces = played(arm, number, piece_bytes)
                found.append(of_arm)
                if not in_pieces:
                    break
    layouts = {arm: tuple(tuple(p.name for p in bucket.parameters) for bucket in plan(PARAMETERS, load(arm), 1 << 20)) for arm in arms}
    memory, network = transport(size, is_memory=True), transport(size, is_memory=False)
    return Measured(VERSION, ("python", "train.py"), size, cores, 4, ranks, layouts, tuple(found), memory, network, 0.0)
