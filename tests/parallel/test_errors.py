"""Ranks that disagree: the same error on every rank, soon, and the session goes on."""

import time

import numpy as np
import pytest

import hvdlite as hvd

SOON_S = 5.0


def fail(handle) -> str:
    start = time.monotonic()
    with pytest.raises(hvd.MismatchError) as caught:
        handle.wait()
    assert time.monotonic() - start < SOON_S
    return str(caught.value)


def agree(text: str) -> None:
    """The text is the same on all ranks, which communicate on."""
    assert len(set(hvd.allgather_object(text))) == 1


def ones(shape, dtype="float32") -> np.ndarray:
    return np.ones(shape, dtype)


CASES = {
    "shape": (lambda n, odd: hvd.allreduce_async([ones(4 if odd else 3)], name=n), "shape (3,) on rank 0 but (4,) on rank {last}"),
    "dimensions": (lambda n, odd: hvd.allreduce_async([ones((3, 1) if odd else 3)], name=n), "shape (3,) on rank 0 but (3, 1) on rank {last}"),
    "dtype": (lambda n, odd: hvd.allreduce_async([ones(3, "float64" if odd else "float32")], name=n), "dtype 'float32' on rank 0 but 'float64' on rank {last}"),
    "op": (lambda n, odd: hvd.allreduce_async([ones(3)], name=n, op=hvd.Max if odd else hvd.Sum), "op 'Sum' on rank 0 but 'Max' on rank {last}"),
    "root": (lambda n, odd: hvd.broadcast_async([ones(3)], int(odd), name=n), "root_rank 0 on rank 0 but 1 on rank {last}"),
    "kind": (lambda n, odd: hvd.allgather_async(ones(3), name=n) if odd else hvd.allreduce_async([ones(3)], name=n), "'allreduce' on rank 0 but 'allgather'"),
    "compression": (
        lambda n, odd: hvd.allreduce_async([ones((64, 64))], name=n, compression="topk:density=0.5" if odd else "topk"),
        "compression 'topk' on rank 0 but 'topk:density=0.5' on rank {last}",
    ),
    "feedback": (
        lambda n, odd: hvd.allreduce_async([ones((64, 64))], name=n, compression="topk:feedback=false" if odd else "topk"),
        "compression 'topk' on rank 0 but 'topk:feedback=false' on rank {last}",
    ),
    "prescale": (lambda n, odd: hvd.allreduce_async([ones(3)], name=n, prescale_factor=2.0 if odd else 1.0), "prescale_factor 1.0 on rank 0 but 2.0"),
    "postscale": (lambda n, odd: hvd.allreduce_async([ones(3)], name=n, postscale_factor=2.0 if odd else 1.0), "postscale_factor 1.0 on rank 0 but 2.0"),
    "gathered rows": (lambda n, odd: hvd.allgather_async(ones((1, 3 if odd else 2)), name=n), "shape (any, 2) on rank 0 but (any, 3) on rank {last}"),
    "exchanged rows": (lambda n, odd: hvd.alltoall_async(ones((0, 3 if odd else 2)), name=n), "shape (any, 2) on rank 0 but (any, 3) on rank {last}"),
    "exchanged dtype": (
        lambda n, odd: hvd.alltoall_async(ones((0, 3), "float64" if odd else "float32"), name=n),
        "dtype 'float32' on rank 0 but 'float64' on rank {last}",
    ),
    "scattered rows": (lambda n, odd: hvd.reducescatter_async(ones((4 if odd else 3, 2)), name=n), "shape (3, 2) on rank 0 but (4, 2) on rank {last}"),
    "scattered op": (
        lambda n, odd: hvd.reducescatter_async(ones(3), name=n, op=hvd.Sum if odd else hvd.Average),
        "op 'Average' on rank 0 but 'Sum' on rank {last}",
    ),
    "scattered factor": (
        lambda n, odd: hvd.reducescatter_async(ones(3), name=n, prescale_factor=2.0 if odd else 1.0),
        "prescale_factor 1.0 on rank 0 but 2.0 on rank {last}",
    ),
    "gathered group": (
        lambda n, odd: hvd.grouped_allgather_async([ones((1, 2)), ones((1, 3 if odd else 2))], name=n),
        "[1]' has shape (any, 2) on rank 0 but (any, 3) on rank {last}",
    ),
    "scattered group": (
        lambda n, odd: hvd.grouped_reducescatter_async([ones(2)] * (2 if odd else 3), name=n),
        "a number of tensors 3 on rank 0 but 2 on rank {last}",
    ),
    "group or not": (
        lambda n, odd: hvd.grouped_allgather_async([ones(2)], name=n) if odd else hvd.allgather_async(ones(2), name=n),
        "'allgather' on rank 0 but 'grouped_allgather' on rank {last}",
    ),
    "group": (lambda n, odd: hvd.allreduce_async([ones(1)] * (2 if odd else 3), name=n), "a number of tensors 3 on rank 0 but 2 on rank {last}"),
}


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("case", CASES)
def test_a_mismatch_is_the_same_error_everywhere_and_the_next_collective_works(case, known, odd, size):
    submit, said = CASES[case]
    name = f"error.{case}.{known}"
    if known:
        submit(name, False).wait()
    text = fail(submit(name, odd))
    assert name in text
    assert said.format(last=size - 1) in text
    agree(text)
    submit(name, False).wait()


def test_a_mismatch_leaves_the_arrays_alone(odd):
    array = np.full(4 if odd else 3, 7.0)
    fail(hvd.allreduce_async([array], name="error.untouched"))
    assert (array == 7).all()


def test_a_mismatch_among_many_fails_alone(odd, rank, size):
    arrays = [np.full(3 + (odd and i == 5), rank, np.float64) for i in range(10)]
    handles = [hvd.allreduce_async([a], name=f"error.many.{i}", op=hvd.Sum) for i, a in enumerate(arrays)]
    fail(handles.pop(5))
    for handle in handles:
        handle.wait()
    assert all((a == size * (size - 1) / 2).all() for i, a in enumerate(arrays) if i != 5)


def test_a_name_in_flight_is_an_error_on_that_rank_only(odd, rank):
    hvd.barrier()
    if odd:
        handle = hvd.allreduce_async([ones(3)], name="error.twice")
        with pytest.raises(hvd.DuplicateNameError, match=f"'error.twice' is still being processed on rank {rank}"):
            hvd.allreduce_async([ones(3)], name="error.twice")
    hvd.barrier()
    if not odd:
        handle = hvd.allreduce_async([ones(3)], name="error.twice")
    handle.wait()


def test_what_one_rank_alone_gets_wrong_is_refused_before_anybody_is_asked(odd):
    if odd:
        with pytest.raises(hvd.SettingError, match="is not contiguous"):
            hvd.allreduce_async([ones((3, 4)).T], name="error.local")
        with pytest.raises(hvd.SettingError, match="has dtype object"):
            hvd.broadcast_async([np.array([None])], 0)
        with pytest.raises(hvd.SettingError, match="no negative number of rows"):
            hvd.alltoall_async(ones(0), [-1, *[0] * (hvd.size() - 2), 1])
        with pytest.raises(hvd.SettingError, match="is a scalar"):
            hvd.reducescatter_async(np.array(1.0))
    hvd.allreduce(ones(3), name="error.local")


def test_a_refused_call_without_a_name_does_not_shift_the_later_ones(odd, rank, size):
    """One rank counted it and the others did not: from then on they would wait for each other's unnamed calls for ever."""
    if odd:
        bad = np.array([None])
        for call in (lambda: hvd.allreduce_async([bad]), lambda: hvd.allgather_async(bad), lambda: hvd.broadcast_async([bad], 0)):
            with pytest.raises(hvd.SettingError):
                call()
    counters = hvd.allgather_object(dict(hvd.world().engine.channel.counters), name="error.counters")
    assert all(c.get(kind, 0) == counters[0].get(kind, 0) for c in counters for kind in ("allreduce", "allgather", "broadcast"))
    assert hvd.allreduce(np.array([rank]), op=hvd.Max).tolist() == [size - 1]


def test_a_bucket_names_the_parameter_that_differs(odd, size):
    parameters = [hvd.Parameter("conv.weight", (8, 3), "float32"), hvd.Parameter("fc.weight", (5 if odd else 4, 8), "float32")]
    buckets = hvd.GradientBuckets(hvd.world(), "error.model", parameters, None)
    with pytest.raises(hvd.MismatchError) as caught:
        buckets.finish()
    assert f"'fc.weight' has shape (4, 8) on rank 0 but (5, 8) on rank {size - 1}" in str(caught.value)
    agree(str(caught.value))
