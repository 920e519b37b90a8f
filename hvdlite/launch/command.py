"""What the user wants to run: a script, a module, a piece of code, or any other program."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SettingError

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)?)?")
_TAKES_VALUE = ("-X", "-W", "--check-hash-based-pycs")  # options of Python followed by a value


@dataclass(frozen=True)
class Command:
    """A command, taken apart: ``python options -m target arguments``."""

    kind: Literal["script", "module", "code", "program"]
    target: str
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    options: tuple[str, ...] = ()

    def worker(self) -> list[str]:
        """The command line of one rank: our worker, which runs the target in its own process."""
        return [self.python, *self.options, "-m", "hvdlite.launch.worker", self.kind, self.target, *self.arguments]


def parse(words: Sequence[str]) -> Command:
    """Read ``python train.py ...``, ``train.py ...``, ``python -m module ...``, ``-m module ...`` or ``program ...``.

    Raises:
        SettingError: nothing is given, or what is given does not exist or cannot be executed.
    """
    if not words:
        raise SettingError("nothing to run is given; a script, module or program is expected; write e.g. hvdliterun -np 2 python train.py")
    first, rest = words[0], tuple(words[1:])
    if first == "-m":
        return _module(rest, sys.executable, ())
    if first.startswith("-"):
        raise SettingError(f"{first} is no option of hvdliterun; the command is expected here; see hvdliterun --help")
    if first.endswith(".py"):
        return Command("script", _existing(first), rest)
    if _PYTHON.fullmatch(os.path.basename(first)):
        return _python(_executable(first), rest)
    return Command("program", _executable(first), rest)


def _python(python: str, words: tuple[str, ...]) -> Command:
    options: list[str] = []
    while words:
        word, words = words[0], words[1:]
        if word == "-m":
            return _module(words, python, tuple(options))
        if word == "-c":
            if not words:
                raise SettingError("python -c lacks its code; the code is expected after it; write e.g. python -c 'print(1)'")
            return Command("code", words[0], words[1:], python, tuple(options))
        if word == "-" or not word.startswith("-"):
            return Command("script", _existing(word), words, python, tuple(options))
        options.append(word)
        if word in _TAKES_VALUE and words:
            options.append(words[0])
            words = words[1:]
    raise SettingError("python is given without a script; ranks cannot be interactive; write e.g. hvdliterun -np 2 python train.py")


def _module(words: tuple[str, ...], python: str, options: tuple[str, ...]) -> Command:
    if not words:
        raise SettingError("-m lacks the name of a module; one is expected after it; write e.g. hvdliterun -np 2 -m mypackage.train")
    return Command("module", words[0], words[1:], python, options)


def _existing(script: str) -> str:
    path = Path(script)
    if not path.exists():
        raise SettingError(f"script {script!r} does not exist in {Path.cwd()}; a Python file is expected; check the path")
    if not os.access(path, os.R_OK):
        raise SettingError(f"script {script!r} cannot be read; a readable Python file is expected; check its permissions")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise SettingError(f"{script!r} is a folder without __main__.py; a Python file is expected; name the script")
    return script


def _executable(program: str) -> str:
    found = shutil.which(program)
    if found:
        return found
    if Path(program).is_file():
        raise SettingError(f"{program!r} is not executable; a program or a .py file is expected; write python {program}, or chmod +x {program}")
    raise SettingError(f"command {program!r} is not found; a program on PATH or a .py file is expected; check the spelling")
