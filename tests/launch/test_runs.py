"""Real jobs that end well, on the MPI of this Python."""

import json
import os
import sys
from pathlib import Path


def test_lines_of_four_crowded_ranks_stay_whole(hvdliterun, script):
    result = hvdliterun("-np", 4, script("for i in range(200): print(f'out {i} ' + 'x' * 60)\nfor i in range(50): print(f'err {i}', file=sys.stderr)\n"))
    assert result.code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 800
    for rank in range(4):
        assert result.lines_of(rank) == [f"out {i} " + "x" * 60 for i in range(200)]
        assert [line for line in result.stderr.splitlines() if line.startswith(f"[{rank}] err ")] == [f"[{rank}] err {i}" for i in range(50)]
    crowded = [line for line in result.own_lines if "share" in line]
    assert len(crowded) == (1 if len(os.sched_getaffinity(0)) < 4 else 0)


FACTS = """
import json, pickle, multiprocessing
class Thing: pass
def double(x): return 2 * x
if __name__ == "__main__":
    thing = pickle.loads(pickle.dumps(Thing()))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [21])
    names = ("PYTHONUNBUFFERED", "HVDLITE_SIZE", "HVDLITE_SLOTS", "HVDLITE_COMPRESSION", "OMP_NUM_THREADS")
    print(json.dumps({"argv": sys.argv, "path": sys.path[0], "file": __file__, "name": __name__, "thing": type(thing) is Thing, "doubled": doubled,
        "env": {n: os.environ.get(n) for n in names}, "mode": os.stat(os.environ["HVDLITE_JOB_DIR"]).st_mode & 0o777,
        "job": os.environ["HVDLITE_JOB_DIR"], "pid1": os.getppid() == 1, "tty": sys.stdin.isatty(), "mpi4py": "mpi4py" in sys.modules}))
"""


def test_a_script_runs_as_python_runs_it(hvdliterun, script):
    path = script(FACTS, "deep/er/train.py")
    result = hvdliterun("-np", 1, "--slots", 2, "--compression", "fp16", sys.executable, path, "-np", "7", "--help", OMP_NUM_THREADS="")
    assert result.code == 0, result.stderr
    facts = json.loads(result.stdout)  # one rank: no prefix
    assert facts["argv"] == [str(path), "-np", "7", "--help"]
    assert facts["path"] == str(path.parent)
    assert facts["file"] == str(path)
    assert facts["name"] == "__main__"
    assert facts["thing"] is True
    assert facts["doubled"] == [42]
    assert facts["env"] == {
        "PYTHONUNBUFFERED": "1",
        "HVDLITE_SIZE": "1",
        "HVDLITE_SLOTS": "2",
        "HVDLITE_COMPRESSION": "fp16",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }
    assert facts["mode"] == 0o700
    assert not Path(facts["job"]).exists()
    assert not facts["mpi4py"]
    assert sum("OMP_NUM_THREADS" in line for line in result.own_lines) == 1


def test_modules_code_and_programs_run_too(hvdliterun, script, tmp_path):
    script("print(rank, __name__, __spec__.name, sys.argv[1:], sys.path[0] == os.getcwd())\n", "pkg/__main__.py")
    script("", "pkg/__init__.py")
    result = hvdliterun("-np", 2, "-m", "pkg", "-a", "b")
    assert result.code == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{r}] {r} __main__ pkg.__main__ ['-a', 'b'] True" for r in range(2)]
    assert hvdliterun("-np", 1, sys.executable, "-c", "import sys; print(sys.argv)", "x").stdout == "['-c', 'x']\n"
    result = hvdliterun("-np", 2, "sh", "-c", "echo out; echo err >&2")
    assert sorted(result.stdout.splitlines()) == ["[0] out", "[1] out"]
    assert {"[0] err", "[1] err"} <= set(result.stderr.splitlines())


ODD = r"""
out = sys.stdout.buffer
if rank == 0:
    for i in range(4): out.write(b"\r step %d" % i); out.flush(); time.sleep(0.02)
    out.write(b"\n"); out.flush()
    print("read", repr(sys.stdin.read()))
else:
    for i in range(4): out.write(b"\r step %d" % i); out.flush()
    out.write(b"\n\xff caf\xc3\xa9 \xe2\x82\n"); out.write(b"y" * 3_000_000 + b"\nno end"); out.flush()
    print(repr(sys.stdin.read()), file=sys.stderr)
"""


def test_progress_odd_bytes_huge_lines_and_stdin(hvdliterun, script, tmp_path):
    result = hvdliterun("-np", 2, "--output-filename", tmp_path / "logs", script(ODD), stdin="to rank 0")
    assert result.code == 0, result.stderr
    lines = result.stdout.split("\n")
    assert "[0] read 'to rank 0'" in lines
    assert "[1]  step 3" in lines
    assert "[1] � café �" in lines
    assert "[1] no end" in lines
    assert sum(line.count("y") for line in lines) == 3_000_000
    assert result.stdout.count("step 2") == 1, "only rank 0's progress is shown as it comes"
    assert "[1] ''" in result.stderr.splitlines(), "only rank 0 has a stdin"
    logged = (tmp_path / "logs" / "rank.1" / "stdout").read_bytes()
    assert logged.startswith(b"\r step 0\r step 1")
    assert logged.endswith(b"y\nno end")
    assert (tmp_path / "logs" / "rank.0" / "stderr").read_bytes() == b""


def test_output_can_be_filed_filtered_and_plain(hvdliterun, script, tmp_path):
    path = script("print('hello', rank)\n")
    assert hvdliterun("-np", 1, "--output-filename", tmp_path / "one", path).stdout == "hello 0\n"
    assert (tmp_path / "one" / "rank.0" / "stdout").read_text() == "hello 0\n"
    result = hvdliterun("-np", 2, "--no-prefix", "--tee-ranks", "1", "--output-filename", tmp_path / "two", path)
    assert result.stdout == "hello 1\n"
    assert (tmp_path / "two" / "rank.0" / "stdout").read_text() == "hello 0\n"


def test_dry_run_prints_a_command_that_works(hvdliterun, script):
    result = hvdliterun("-np", 2, "--dry-run", script("print('started')\n"), "a b")
    assert result.code == 0
    assert "started" not in result.stdout
    assert "mpiexec" in result.stdout
    assert "-m hvdlite.launch.worker script" in result.stdout
    assert "'a b'" in result.stdout


def test_a_rank_may_end_before_the_others(hvdliterun, script):
    result = hvdliterun("-np", 2, script("if rank == 1: sys.exit(0)\ntime.sleep(1)\nprint('done')\n"))
    assert (result.code, result.stdout) == (0, "[0] done\n")


def test_a_rank_may_leave_mpi_without_a_word(hvdliterun, script):
    body = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nif rank == 1: os._exit(0)\ntime.sleep(1)\nprint('done', flush=True)\nos._exit(0)\n"
    result = hvdliterun("-np", 2, script(body))
    assert (result.code, result.stdout) == (0, "[0] done\n"), result.stderr


def test_ranks_compute_together(hvdliterun, script):
    body = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(rank + 1), MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank == rank)\n"
    result = hvdliterun("-np", 3, script(body))
    assert sorted(result.stdout.splitlines()) == [f"[{r}] 6 3 True" for r in range(3)], result.stderr


def test_a_job_may_start_a_job(hvdliterun, script):
    inner = script("print('inner', rank)\n", "inner.py")
    body = f"import subprocess\nif rank == 0: subprocess.run([sys.executable, '-m', 'hvdlite', 'run', '-np', '2', {str(inner)!r}], check=True)\n"
    result = hvdliterun("-np", 2, script(body))
    assert result.code == 0, result.stderr
    assert sorted(result.lines_of(0)) == ["[0] inner 0", "[1] inner 1"]
