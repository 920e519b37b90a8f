"""How a program runs inside a rank, compared with Python itself; no MPI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = "import sys; from hvdlite.launch import script; script.run(sys.argv[1], sys.argv[2], sys.argv[3:], failed=lambda *why: print('failed', *why))"


def ours(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return _run(folder, "-c", RUN, *words)


def _run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=30, check=False)


FACTS = "import sys, os\nprint(sys.argv, sys.path[0], __name__, globals().get('__file__'), __spec__ and __spec__.name, __package__)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub" / "pkg").mkdir(parents=True)
    for name in ("a.py", "sub/b.py", "sub/__main__.py", "sub/pkg/__init__.py", "sub/pkg/__main__.py", "sub/pkg/c.py"):
        (tmp_path / name).write_text("" if "init" in name else FACTS)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "b.py")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "target", "inside"),
    [
        ("script", "a.py", "."),
        ("script", "sub/b.py", "."),
        ("script", "link.py", "."),
        ("script", "sub", "."),
        ("module", "pkg", "sub"),
        ("module", "pkg.c", "sub"),
        ("code", FACTS, "."),
    ],
)
def test_a_program_sees_what_python_shows_it(folder, kind, target, inside):
    python = {"script": [], "module": ["-m"], "code": ["-c"]}[kind]
    expected = _run(folder / inside, *python, target, "-x", "1")
    assert expected.returncode == 0
    assert ours(folder / inside, kind, target, "-x", "1").stdout == expected.stdout


def test_the_traceback_shows_the_program_only(tmp_path):
    path = tmp_path / "t.py"
    path.write_text("def f():\n    raise ValueError('boom')\ntry:\n    f()\nexcept ValueError:\n    f()\n")
    done = ours(tmp_path, "script", str(path))
    assert (done.returncode, done.stdout) == (1, "failed ValueError boom\n")
    assert done.stderr == _run(tmp_path, str(path)).stderr


@pytest.mark.parametrize(
    "body", ["def f(:\n", "import not_there\n", "class E(BaseException): pass\nraise E('x')\n", "raise ExceptionGroup('g', [OSError(1, 'x')])\n"]
)
def test_errors_look_as_in_python(tmp_path, body):
    (tmp_path / "t.py").write_text(body)
    done, expected = ours(tmp_path, "script", "t.py"), _run(tmp_path, "t.py")
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
    assert done.stdout.startswith("failed ")


@pytest.mark.parametrize(("argument", "code"), [("", 0), ("0", 0), ("7", 7), ("'sorry'", 1), ("256", 1)])
def test_sys_exit_gives_the_exit_code(tmp_path, argument, code):
    (tmp_path / "t.py").write_text(f"import sys, atexit\natexit.register(print, 'bye')\nsys.exit({argument})\n")
    done = ours(tmp_path, "script", "t.py")
    assert done.returncode == code
    assert done.stdout == ("bye\n" if code == 0 else f"failed SystemExit {code}\n"), "a failing rank must not wait in exit hooks"
    assert done.stderr == ("sorry\n" if "sorry" in argument else "")


def test_a_missing_module_is_named(tmp_path):
    done = ours(tmp_path, "module", "no_such_module")
    assert done.returncode == 1
    assert re.search("No module named 'no_such_module'", done.stderr)


def test_the_programs_own_hook_is_called_and_cannot_hide_the_cause(tmp_path):
    (tmp_path / "t.py").write_text("import sys\nsys.excepthook = lambda *_: 1 / 0\nraise ValueError('boom')\n")
    done = ours(tmp_path, "script", "t.py")
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
