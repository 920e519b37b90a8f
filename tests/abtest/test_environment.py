import pytest
from comparisons import PLAN, analysed, leave_run

from hvdlite.abtest import runs
from hvdlite.abtest.environment import job, job_differences, machine

pytest.importorskip("scipy")


def read(folder):
    found = [runs.read(runs.folder_of(folder, seed, arm), PLAN) for seed, arm in PLAN.order()]
    return [run for run in found if run is not None]


def test_jobs_that_are_alike_are_told_once(tmp_path):
    leave_run(tmp_path, "none", 0)
    leave_run(tmp_path, "int8", 0)
    assert job(read(tmp_path)) == {"ranks": "2", "transport": "shared_memory"}
    assert job_differences(read(tmp_path)) == []


def test_jobs_that_are_not_alike_are_not_controlled(tmp_path):
    leave_run(tmp_path, "none", 0, job={"ranks": "2", "transport": "mpi"})
    leave_run(tmp_path, "int8", 0, job={"ranks": "2", "transport": "mpi", "HVDLITE_SLOTS": "2"})
    said = "HVDLITE_SLOTS: not the same in all runs: not set or 2"
    assert job_differences(read(tmp_path)) == [said]
    assert said in analysed(tmp_path).not_controlled
    assert job(read(tmp_path))["HVDLITE_SLOTS"] == "not set or 2"


def test_runs_that_said_nothing_are_no_difference(tmp_path):
    leave_run(tmp_path, "none", 0)
    leave_run(tmp_path, "int8", 0)
    path = runs.folder_of(tmp_path, 0, "int8") / runs.REPORTS
    path.write_text("")
    assert job_differences(read(tmp_path)) == []
    assert job([]) == {}


def test_the_machine_is_told():
    told = machine()
    assert {"host", "system", "processor", "cores", "memory", "python", "numpy"} <= told.keys()
    assert all(told.values())
