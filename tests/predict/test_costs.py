"""Curves through samples, and what they become with other numbers of ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.compression import AllGather, AllReduce, AllToAll
from hvdlite.predict.costs import TransportCosts, curve, hops, sent_bytes
from hvdlite.predict.ranks import Sample

samples = st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(1e-6, 1)), min_size=1, max_size=12)


@given(samples, st.lists(st.floats(0, 1e8), min_size=2, max_size=6))
def test_more_bytes_never_cost_less(found, sizes):
    fitted = curve(found)
    times = [fitted.at(size) for size in sorted(sizes)]
    assert times == sorted(times) or np.diff(times).min() > -1e-9
    assert min(times) >= 0


def test_a_curve_goes_through_the_medians_and_on_as_it_ended():
    fitted = curve([(100, 1.0), (100, 9.0), (100, 2.0), (300, 4.0)])
    assert [fitted.at(size) for size in (0, 100, 200, 300, 500)] == [2.0, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_bytes_are_those_of_the_requests(num_ranks):
    array = np.zeros(24 * num_ranks, np.float32)
    assert sent_bytes("allreduce", array.nbytes, num_ranks) == pytest.approx(AllReduce(array).sent_bytes(num_ranks), abs=1)
    assert sent_bytes("allgather", array.nbytes, num_ranks) == AllGather((array,)).sent_bytes(num_ranks)
    parts = [(part,) for part in np.split(array, num_ranks)]
    assert sent_bytes("alltoall", array.nbytes, num_ranks) == AllToAll(parts).sent_bytes(num_ranks)


def costs(wall_per_byte, cpu_per_byte, num_ranks=2):
    found = [Sample("allreduce", size, 1e-4 + wall_per_byte * size, cpu_per_byte * size) for size in (1 << 10, 1 << 20, 1 << 24)]
    return TransportCosts.of(found, [1e-4], [2e-4], num_ranks, is_memory=False)


def test_the_line_shows_where_sending_takes_longer_than_copying():
    assert costs(8e-9, 1e-9).bytes_per_second(cores=1) == pytest.approx(1 / 8e-9)
    assert costs(1e-9, 1e-9).bytes_per_second(cores=1) == math.inf
    assert costs(2e-9, 1e-9).bytes_per_second(cores=0.5) == math.inf, "half a core copies half as fast"


def test_a_request_costs_what_was_measured_and_by_bytes_with_more_ranks():
    found = costs(1e-9, 1e-9)
    cpu, wire, waiting = found.request("allreduce", 1 << 20, 2, cores=1)
    assert (cpu, wire, waiting) == (pytest.approx(1e-9 * (1 << 20)), 1 << 20, pytest.approx(1e-4))
    cpu, wire, waiting = found.request("allreduce", 1 << 20, 4, cores=1)
    assert (cpu, wire, waiting) == (pytest.approx(1.5e-9 * (1 << 20)), 1.5 * (1 << 20), pytest.approx(2e-4))


def test_hops():
    assert [hops("allreduce", 8, n, is_small=True) for n in (2, 3, 4, 64)] == [1, 2, 2, 6]
    assert [hops(kind, 1 << 20, 4, is_small=False) for kind in ("allreduce", "allgather", "alltoall")] == [2, 1, 1]
    assert hops("allreduce", 1 << 20, 2, is_small=False) == 1
