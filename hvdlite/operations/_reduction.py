"""How ranks are combined: the operators, what they can be applied to, and factors."""

from __future__ import annotations

import enum
import math
from typing import Literal

import numpy as np

from ..arrays import NARROW_FLOATS, Array, dtype_name, is_floating, ops
from ..compression import Compressor
from ..errors import CompressionError, SettingError, UnsupportedError


class ReduceOp(enum.IntEnum):
    """How ranks are combined; the numbers are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum, Min, Max, Product = ReduceOp

COMBINE: dict[ReduceOp, Literal["sum", "min", "max", "product"]] = {Average: "sum", Sum: "sum", Min: "min", Max: "max", Product: "product"}
"""What is done to the ranks' values; a mean is their sum, divided afterwards."""


def check_reducible(name: str, dtype: str, op: ReduceOp, prescale: float, postscale: float) -> None:
    """Raise :class:`hvdlite.errors.SettingError` for what no reduction can mean."""
    if dtype == "bool" and op not in (Min, Max):
        raise SettingError(
            f"{name!r} is boolean, and op={op.name} of booleans has no meaning; Max (any) or Min (all) is expected; convert it to an integer type to count"
        )
    if dtype.startswith("complex") and op in (Min, Max):
        raise SettingError(f"{name!r} is complex, and op={op.name} needs an order; Sum, Average or Product is expected")
    if op is Adasum and (not is_floating(dtype) or dtype.startswith("complex")):
        raise UnsupportedError(f"{name!r} has dtype {dtype}, and op=Adasum scales by fractions; a real floating type is expected; convert it, or pass op=Sum")
    for what, value in (("prescale_factor", prescale), ("postscale_factor", postscale)):
        if not math.isfinite(value):
            raise SettingError(f"{what}={value} for {name!r}; a finite number is expected")


def check_compressible(name: str, compressor: Compressor, op: ReduceOp) -> None:
    """Raise :class:`hvdlite.errors.CompressionError` where a compressor, which estimates a mean, is asked for something else."""
    if op in (Average, Sum) or (op is Adasum and compressor.rounding):
        return
    expected = "fp16 or bf16, which only round, is" if op is Adasum else "Average or Sum is"
    raise CompressionError(f"{name}: {compressor.spec} cannot compress op={op.name}; {expected} expected; leave compression out")


def divide(flat: Array, divisor: int) -> None:
    """Integers, in place: exactly, and truncated, as Horovod does."""
    wide = np.asarray(flat, np.uint64 if dtype_name(flat) == "uint64" else np.int64)
    flat[...] = (wide - np.fmod(wide, divisor)) // divisor


def scale(flat: Array, factor: float) -> None:
    """In place, for any dtype; integers are scaled in double precision and truncated."""
    dtype = dtype_name(flat)
    if dtype in NARROW_FLOATS:
        flat[...] = ops(flat).cast(ops(flat).cast(flat, "float32") * factor, dtype)
    elif is_floating(dtype):
        flat *= flat.dtype.type(factor)
    else:
        flat[...] = np.trunc(np.asarray(flat, np.float64) * factor)
