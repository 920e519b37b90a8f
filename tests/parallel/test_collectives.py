"""The array-level collectives, on however many ranks run this."""

import numpy as np
import pytest

import hvdlite as hvd


def test_tensors_submitted_in_another_order_on_each_rank_come_back_right(rank, size):
    order = np.random.default_rng(rank).permutation(1000)
    handles = {}
    for i in order:
        array = np.full(1024, i + rank, np.float32)
        handles[i] = (array, hvd.allreduce_async([array], name=f"order.{i}"))
    for i, (array, handle) in handles.items():
        handle.wait()
        assert (array == np.float32(i + (size - 1) / 2)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_large_halves_average_without_overflow(dtype):
    assert (hvd.allreduce(np.full(5, 40000, dtype)) == 40000).all()
