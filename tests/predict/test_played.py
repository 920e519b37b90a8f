"""Programs are what compressors really ask for."""

import numpy as np
import pytest
from predictions import PARAMETERS, played

from hvdlite.buckets import plan
from hvdlite.compression import Bucket, load, names, simulate
from hvdlite.predict._played import Begin, End, Played, Request, Work, merged
from hvdlite.predict.costs import sent_bytes


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("arm", names())
def test_a_program_sends_what_the_compressor_sends(arm, num_ranks):
    found, _ = played(arm, num_ranks, 0)
    for bucket, program in zip(plan(PARAMETERS, load(arm), 1 << 20), found.programs, strict=True):
        shapes = [p.shape for p in bucket.parameters]
        sent = sum(sent_bytes(s.kind, s.nbytes, num_ranks) for s in program if isinstance(s, (Request, Begin)))
        expected = load(arm).wire_bytes(shapes, num_ranks) if bucket.compressed else load("none").wire_bytes(shapes, num_ranks)
        assert sent == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("arm", names())
def test_requests_come_in_the_order_in_which_ranks_ask(arm):
    shapes = [("w", (64, 48))]
    flat = np.random.default_rng(0).normal(size=64 * 48).astype(np.float32)
    real = simulate([load(arm) for _ in range(3)], [Bucket.of(flat.copy(), shapes, rank, 3) for rank in range(3)], piece_bytes=1 << 10)
    program = Played(3, 1 << 10)(load(arm).exchange(Bucket.of(flat.copy(), shapes, 0, 3)))
    asked = [s.kind for s in program if isinstance(s, (Request, Begin))]
    assert asked == [type(r).__name__.lower() for r in real.requests]
    begun, ended = ([s.token for s in program if isinstance(s, kind)] for kind in (Begin, End))
    assert sorted(begun) == sorted(ended), "everything that was begun is waited for"


def test_of_several_runs_each_step_takes_its_median():
    runs = [(Work(seconds), Request("allreduce", 8), Work(2 * seconds)) for seconds in (3.0, 1.0, 2.0)]
    assert merged(runs) == (Work(2.0), Request("allreduce", 8), Work(4.0))
