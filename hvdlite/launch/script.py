"""Runs the user's program inside a rank as Python itself would: same ``__main__``, ``sys.argv``, ``sys.path[0]`` and tracebacks.

The difference is how it ends. An uncaught exception or ``sys.exit(n)`` ends the process at once, without finalizing MPI: finalizing waits for the other ranks,
and they wait for this one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from ..errors import CompressionError

Failed = Callable[[str, str], None]  # takes the type and the text of what ended the program


def run(kind: str, target: str, arguments: list[str], *, failed: Failed) -> None:
    """Run the program; return when it ends well, leave the process otherwise."""
    try:
        try:
            code, main = _PREPARE[kind](target, arguments)
        except (OSError, SyntaxError, ImportError, ValueError) as error:
            error.with_traceback(None)
            raise
        exec(code, main.__dict__)
    except SystemExit as error:
        status = _exit_status(error)
        if status:
            failed("SystemExit", str(status))
            leave(status)
    except KeyboardInterrupt:
        failed("KeyboardInterrupt", "")
        leave(130)
    except CompressionError as error:  # an option the user gave, not a fault of the program: the launcher's line says it all
        failed(type(error).__name__, f"{error} ({_where(error)})")
        leave(2)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one
        failed(type(error).__name__, str(error))  # first: the program's own hook may end the process
        _show(error)
        leave(1)


def leave(status: int) -> NoReturn:
    """End the process now: flush what was printed, run nothing else."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, broken or replaced by the program
            continue
    os._exit(status)


def _exit_status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF or (1 if error.code else 0)
    sys.stderr.write(f"{error.code}\n")
    return 1


def _where(error: BaseException) -> str:
    """``file:line`` of the program that called hvdlite."""
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((package, "<"))]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "in hvdlite"


def _show(error: BaseException) -> None:
    """Print the traceback without our frames, through ``sys.excepthook`` if the program has its own."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    error.__traceback__ = tb
    hook: Callable[[type[BaseException], BaseException, TracebackType | None], object] = sys.excepthook
    try:
        hook(type(error), error, tb)
    except Exception:  # noqa: BLE001 - a program's broken hook must not hide what happened
        traceback.print_exception(error)


def _main_module(file: str | None, spec: importlib.machinery.ModuleSpec | None = None) -> ModuleType:
    """A fresh ``__main__`` in place of the worker's: pickle and multiprocessing find the program's classes there."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=spec, __loader__=spec.loader if spec else None, __package__=spec.parent if spec else None)
    if file is not None:
        main.__dict__.update(__file__=file, __cached__=None)
    sys.modules["__main__"] = main
    return main


def _prepare_script(target: str, arguments: list[str]) -> tuple[CodeType, ModuleType]:
    sys.argv = [target, *arguments]
    if os.path.isdir(target):
        _set_path(os.path.abspath(target))
        spec = importlib.machinery.PathFinder.find_spec("__main__", [target])
        if spec is None or spec.loader is None:
            raise ImportError(f"can't find '__main__' module in {target!r}")
        return _code_of(spec), _main_module(spec.origin, spec)
    _set_path(os.path.dirname(os.path.realpath(target)))
    path = os.path.abspath(target)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = _main_module(path)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    return code, main


def _prepare_module(target: str, arguments: list[str]) -> tuple[CodeType, ModuleType]:
    _set_path(os.getcwd())
    sys.argv = ["-m", *arguments]
    spec = importlib.util.find_spec(target)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{target}.__main__")
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {target!r} that can be run")
    code = _code_of(spec)
    main = _main_module(spec.origin, spec)
    sys.argv[0] = spec.origin or target
    return code, main


def _prepare_code(target: str, arguments: list[str]) -> tuple[CodeType, ModuleType]:
    sys.argv = ["-c", *arguments]
    _set_path("")
    return compile(target, "<string>", "exec", dont_inherit=True), _main_module(None)


def _code_of(spec: importlib.machinery.ModuleSpec) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code else None
    if not isinstance(code, CodeType):
        raise ImportError(f"no code object available for {spec.name}")
    return code


def _set_path(first: str) -> None:
    """``python -m`` put the working folder in front; Python would have put ``first`` there."""
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = first


_PREPARE: dict[str, Callable[[str, list[str]], tuple[CodeType, ModuleType]]] = {
    "script": _prepare_script,
    "module": _prepare_module,
    "code": _prepare_code,
}
