"""``Compression``: Horovod's two names, and every compressor of hvdlite under its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdlite import Compressor, SettingError, as_compressor
from hvdlite.compression import load, names


class _Names(type):
    def __getattr__(cls, name: str) -> Callable[..., Compressor]:
        if name.startswith("_") or name not in names():
            raise AttributeError(f"Compression has no {name!r}; choose one of {', '.join(names())}")
        return lambda **options: load(name, **options)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *names()]


class Compression(metaclass=_Names):
    """What to pass as ``compression=``: ``Compression.none``, ``Compression.fp16``, ``Compression.topk(density=0.01)``, ..."""

    none = "none"
    fp16 = "fp16"

    @staticmethod
    def resolve(compression: Any) -> Compressor | None:
        """Whatever a user may pass, as a compressor; None for no compression. Classes of another adapter go by their ``spec``."""
        if isinstance(compression, type) or (callable(getattr(compression, "compress", None)) and not isinstance(compression, Compressor)):
            spec = getattr(compression, "spec", None)
            if not isinstance(spec, str):
                raise SettingError(
                    f"compression={compression!r} has Horovod's compress() and decompress(); hvdlite.keras takes a spec such as 'topk:density=0.01' or a "
                    "Compressor; write yours as a file in compression/ (CONTRIBUTING.md), which then works on every backend"
                )
            compression = spec
        return as_compressor(compression)
