"""The timeline of rank 0, on real ranks."""

import json
import shutil
import tempfile

import numpy as np
import pytest

import hvdlite


@pytest.fixture
def path(rank):
    """The same file on every rank: pytest's tmp_path is made for one process."""
    folder = hvdlite.broadcast_object(tempfile.mkdtemp() if rank == 0 else None)
    yield f"{folder}/trace.json"
    hvdlite.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def test_rank_0_writes_what_is_communicated_between_start_and_stop(path, rank, size):
    hvdlite.start_timeline(path, mark_cycles=True)
    hvdlite.barrier()
    for _ in range(3):
        hvdlite.allreduce(np.ones(5, np.float32), name="x")
    hvdlite.broadcast(np.ones(5, np.float32), 0, name="y")
    hvdlite.stop_timeline()
    hvdlite.stop_timeline()
    hvdlite.allreduce(np.ones(5, np.float32), name="later")
    if rank == 0:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        of_x = [(e["ph"], e["name"]) for e in events if rows.get(e["tid"]) == "allreduce.x" and e["ph"] in "BE"]
        negotiated = [("B", "NEGOTIATE_ALLREDUCE"), ("E", "NEGOTIATE_ALLREDUCE")] if size > 1 else []
        assert of_x == 3 * [*negotiated, ("B", "ALLREDUCE"), ("E", "ALLREDUCE")]
        assert "broadcast.y" in rows.values()
        assert "allreduce.later" not in rows.values()
        assert any(e["name"] == "CYCLE_START" for e in events) is (size > 1)


def test_a_second_timeline_completes_the_first(path, rank):
    hvdlite.start_timeline(path)
    hvdlite.start_timeline(f"{path}.2")
    hvdlite.allreduce(np.ones(2, np.float32), name="z")
    hvdlite.stop_timeline()
    if rank == 0:
        with open(path, encoding="utf-8") as first, open(f"{path}.2", encoding="utf-8") as second:
            assert not [e for e in json.load(first) if e["ph"] == "B"]
            assert [e for e in json.load(second) if e["name"] == "ALLREDUCE"]
