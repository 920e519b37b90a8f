"""Which transport a job gets: memory on one machine, MPI when there is too little of it or when it was asked for."""

import collections
import logging

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.transports import shared_memory

Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture
def fresh_world():
    """Leave the world of the other tests, and come back to it."""
    hvd.shutdown()
    yield
    hvd.shutdown()
    hvd.init()


def kind() -> str:
    return type(hvd.world().transport).__name__


def test_a_small_dev_shm_is_not_overrun(fresh_world, monkeypatch, caplog):
    monkeypatch.delenv("HVDLITE_TRANSPORT", raising=False)
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: Usage(64 << 20, 0, 64 << 20))
    logging.getLogger("hvdlite").propagate = True
    with caplog.at_level(logging.WARNING, "hvdlite"):
        hvd.init()
    assert kind() == ("LocalTransport" if hvd.size() == 1 else "MpiTransport")
    assert ("/dev/shm leaves" in caplog.text) == (hvd.size() > 1 and hvd.rank() == 0)
    assert (hvd.allreduce(np.full(10, hvd.rank(), np.float32), op=hvd.Max) == hvd.size() - 1).all()


def test_mpi_when_asked_for(fresh_world, monkeypatch):
    monkeypatch.setenv("HVDLITE_TRANSPORT", "mpi")
    hvd.init()
    assert kind() == ("LocalTransport" if hvd.size() == 1 else "MpiTransport")


def test_memory_by_default_and_gradients_lie_in_it(fresh_world, monkeypatch):
    monkeypatch.delenv("HVDLITE_TRANSPORT", raising=False)
    hvd.init()
    if hvd.size() > 1:
        assert kind() == "SharedMemoryTransport"
        buckets = hvd.GradientBuckets(hvd.world(), "choice", [hvd.Parameter("w", (1000,), "float32")], None)
        assert hvd.world().transport.holds(buckets.view("w"))


def test_ranks_that_are_set_up_differently_are_refused(rank, size, fresh_world, monkeypatch):
    monkeypatch.setenv("HVDLITE_SLOTS", "2" if rank == size - 1 else "4")
    if size == 1:
        hvd.init()
        return
    with pytest.raises(hvd.SettingError, match=rf"slots is 4 on rank 0 but 2 on rank {size - 1}"):
        hvd.init()
