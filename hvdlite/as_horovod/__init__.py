"""Scripts that say ``import horovod`` run on hvdlite. Nothing is installed under that name: the folder ``horovod`` here goes by it on request.

``hvdliterun --as-horovod`` calls :func:`install` in every rank, and puts :data:`FOLDER` on the PYTHONPATH of what ranks start in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["FOLDER", "forward", "install"]

FOLDER = Path(__file__).parent
"""Holds the package ``horovod``: a file of it stands for one of Horovod's modules and says what that is here."""

_NAME = "horovod"


class _Finder:
    """Finds ``horovod`` here, whatever else goes by that name, and its modules nowhere else."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        spec = PathFinder.find_spec(fullname, [str(FOLDER)] if path is None else path, target)
        if spec is None:
            raise ModuleNotFoundError(_absent(fullname), name=fullname)
        return spec


def install() -> None:
    """From now on, ``import horovod`` gives hvdlite in this process.

    Raises:
        RuntimeError: another ``horovod`` is loaded already.
    """
    loaded = sys.modules.get(_NAME)
    if loaded is not None and Path(loaded.__file__ or "").parent != FOLDER / _NAME:
        raise RuntimeError(f"horovod is loaded already, from {loaded.__file__}; none is expected yet; install the alias before anything imports horovod")
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def forward(name: str, target: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of module ``name``: what it does not define itself is that of hvdlite's module ``target``."""

    def get(attribute: str) -> Any:
        module = import_module(target)
        if attribute.startswith("__") or not hasattr(module, attribute):
            raise AttributeError(_absent(f"{name}.{attribute}"))
        return getattr(module, attribute)

    return get


def _absent(name: str) -> str:
    return (
        f"{name} is not in hvdlite, which stands in for horovod here (--as-horovod); docs/migrating_from_horovod.md says what is; do without it, or use Horovod"
    )
