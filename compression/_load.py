"""The registry is the folder: ``names()`` lists its files, ``load("topk:density=0.01")`` builds a compressor."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Callable
from importlib import import_module

import msgspec

from ..errors import CompressionError
from ._contract import Compressor
from ._feedback import ErrorFeedback

_FEEDBACK = "feedback"  # the one option that belongs to no compressor: error feedback around it, on by default where biased
_IS_OPTION = re.compile(r"\s*\w+\s*=")


def names() -> list[str]:
    """Every compressor, by the name a user types."""
    return sorted(m.name for m in pkgutil.iter_modules(import_module(str(__package__)).__path__) if not m.name.startswith("_"))


def load(spec: str, **options: object) -> Compressor:
    """Build the compressor that ``spec`` describes.

    Args:
        spec: ``name`` or ``name:option=value,option=value``; ``feedback=false`` refuses error feedback.
        options: further options, as values.
    Raises:
        CompressionError: unknown name or option, or a value the compressor refuses.
    """
    name, _, written = spec.strip().partition(":")
    given: dict[str, object] = dict(_parse(spec, written)) | options
    kind = kind_of(name)
    feedback = _convert(spec, _FEEDBACK, given.pop(_FEEDBACK, kind.biased), bool)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    hints = inspect.get_annotations(kind, eval_str=True)
    for key in given:
        if key not in fields:
            known = ", ".join([*fields, _FEEDBACK])
            raise CompressionError(f"{name} has no option {key!r} (in {spec!r}); its options are {known}; correct or drop it")
    compressor = kind(**{key: _convert(spec, key, value, hints[key]) for key, value in given.items()})
    return ErrorFeedback(compressor) if feedback else compressor


def split_specs(written: str) -> list[str]:
    """``fp16,topk:density=0.01,feedback=false`` -> two specs.

    Commas stand between specs and between the options of one; what begins with ``word=`` is an option of the spec before it.
    """
    specs: list[str] = []
    for piece in written.split(","):
        if specs and _IS_OPTION.match(piece):
            specs[-1] += "," + piece.strip()
        elif piece.strip():
            specs.append(piece.strip())
    return specs


class CompressorNames(type):
    """Gives a class every compressor under its name: ``Compression.topk(density=0.01)``."""

    def __getattr__(cls, name: str) -> Callable[..., Compressor]:
        if name.startswith("_") or name not in names():
            raise AttributeError(f"Compression has no {name!r}; choose one of {', '.join(names())}")
        return lambda **options: load(name, **options)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *names()]


def kind_of(name: str) -> type[Compressor]:
    """The class in the file of that name."""
    if name not in names():
        raise CompressionError(f"unknown compressor {name!r}; choose one of {', '.join(names())}; e.g. topk:density=0.01")
    module = import_module(f"{__package__}.{name}")
    found = [v for v in vars(module).values() if inspect.isclass(v) and issubclass(v, Compressor) and v.__module__ == module.__name__]
    if len(found) != 1:
        raise CompressionError(f"compression/{name}.py holds {len(found)} compressors; exactly one Compressor subclass is expected; move the others out")
    return found[0]


def _parse(spec: str, written: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, written.split(",")):
        key, equals, value = part.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise CompressionError(f"cannot read {part!r} in {spec!r}; expected name:option=value,option=value; e.g. powersgd:rank=4")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _convert(spec: str, key: str, value: object, kind: type) -> object:
    try:
        if kind is float and isinstance(value, str):
            return float(value)  # also ".5", which is no number in JSON
        return msgspec.convert(value, kind, strict=False)
    except (ValueError, msgspec.ValidationError):
        raise CompressionError(f"{key}={value} in {spec!r} is not {_article(kind)}; give a value such as {_example(kind)}") from None


def _article(kind: type) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(kind.__name__, f"a {kind.__name__}")


def _example(kind: type) -> str:
    return {"int": "4", "float": "0.01", "bool": "true"}.get(kind.__name__, "a word")
