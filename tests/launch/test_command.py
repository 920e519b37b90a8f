import os
import sys

import pytest

from hvdlite.errors import SettingError
from hvdlite.launch.command import Command, parse


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "plain").write_text("")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--lr", "1"], Command("script", "train.py", ("--lr", "1"))),
        ([sys.executable, "train.py", "-np", "9"], Command("script", "train.py", ("-np", "9"), sys.executable)),
        ([sys.executable, "-u", "-X", "dev", "train.py"], Command("script", "train.py", (), sys.executable, ("-u", "-X", "dev"))),
        ([sys.executable, "-m", "pkg.mod", "-m"], Command("module", "pkg.mod", ("-m",), sys.executable)),
        (["-m", "pkg.mod", "a"], Command("module", "pkg.mod", ("a",))),
        ([sys.executable, "-c", "pass", "x"], Command("code", "pass", ("x",), sys.executable)),
    ],
)
def test_commands_are_understood(words, expected):
    assert parse(words) == expected


def test_a_program_is_found_on_path():
    command = parse(["hostname", "-s"])
    assert command.kind == "program"
    assert os.path.isabs(command.target)
    assert command.worker()[:3] == [sys.executable, "-m", "hvdlite.launch.worker"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "nothing to run"),
        (["missing.py"], "script 'missing.py' does not exist"),
        ([sys.executable, "missing.py"], "script 'missing.py' does not exist"),
        ([sys.executable], "python is given without a script"),
        ([sys.executable, "-m"], "-m lacks the name"),
        ([sys.executable, "-c"], "lacks its code"),
        (["-m"], "-m lacks the name"),
        (["no-such-program"], "is not found"),
        (["./plain"], "is not executable"),
        (["--unknown"], "no option of hvdliterun"),
    ],
)
def test_bad_commands_are_explained(words, reason):
    with pytest.raises(SettingError, match=reason) as caught:
        parse(words)
    assert str(caught.value).count(";") >= 2
