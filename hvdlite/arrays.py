"""The array operations that compressors, buckets and the engine need, for numpy and for torch memory alike.

``ops(x)`` looks the implementation up by the type of ``x``; torch is never imported here, only found when the caller already has a
tensor. numpy is the definition of every result. On the CPU each framework's tensors are numpy views without a copy, so numpy is the
one CPU implementation; the torch half exists for device memory. Where a compiler was there, the hot loops on numpy arrays are C, and
give the same bits (:func:`loops`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor: shape, dtype, arithmetic, slicing and reshape mean the same on both."""

NARROW_FLOATS = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
"""Types in which nothing is ever summed: they are widened to float32 first."""

How: TypeAlias = Literal[0, 1, 2]
"""What becomes of a computed vector in the memory it is meant for: ``SET``, ``ADD`` or ``SUBTRACT``."""
SET: Literal[0] = 0
ADD: Literal[1] = 1
SUBTRACT: Literal[2] = 2

_FOREIGN_TO_NUMPY = NARROW_FLOATS - {"float16"}  # numpy knows them through ml_dtypes only, and torch does not convert them


class ArrayOps(Protocol):
    """What is not spelled the same on every kind of array."""

    tile: int
    """Entries of float32 that stay in the cache between two passes over them; work in steps of this size. On a device, everything."""

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """Uninitialised array on the device of the array that was looked up."""

    def zeros(self, shape: Sequence[int], dtype: str) -> Array:
        """Array of zeros."""

    def from_numpy(self, array: np.ndarray[Any, Any]) -> Array:
        """A numpy array, brought to this kind and device."""

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """The array in main memory; no copy if it already lies there."""

    def cast(self, array: Array, dtype: str) -> Array:
        """The array as ``dtype``; the same object if it already is."""

    def concat(self, arrays: Sequence[Array]) -> Array:
        """Flattened arrays of one dtype, one after the other."""

    def as_bytes(self, array: Array) -> Array:
        """The contiguous array's memory as a uint8 vector, without a copy."""

    def from_bytes(self, raw: Array, dtype: str, shape: Sequence[int]) -> Array:
        """A uint8 vector read as ``dtype``, without a copy where alignment allows."""

    def all_finite(self, array: Array) -> bool:
        """Whether no entry is NaN or infinite. Integers always are."""

    def absmax(self, array: Array) -> float:
        """Largest magnitude; 0 for an empty array."""

    def rint(self, array: Array) -> Array:
        """Round half to even."""

    def block_absmax(self, blocks: Array) -> Array:
        """Largest magnitude of each row."""

    def where(self, condition: Array, yes: Array, no: Array | float) -> Array:
        """Entry-wise choice."""

    def largest(self, vector: Array, k: int) -> tuple[Array, Array]:
        """``(index int32 ascending, values)`` of the k entries of largest magnitude; of equals, the first."""

    def combine(self, op: str, into: Array, other: Array) -> Array:
        """``into = op(into, other)`` entry by entry, in place; op is sum, min, max or product."""

    def sum_of(self, arrays: Sequence[Array], outs: Sequence[Array], factor: float = 1.0) -> None:
        """Write ``(arrays[0] + arrays[1] + ...) * factor``, added in this order, to every one of ``outs``, which may be among the arrays."""

    def copy_checked(self, array: Array, into: Array) -> bool:
        """Copy into an array of the same shape; whether no entry is NaN or infinite."""

    def low_rank(self, p: Array, q: Array, out: Array) -> None:
        """``out = p @ q``, of (rows, rank) and (rank, columns), added in the order of the ranks: the same bits whatever BLAS is there."""

    def fold_low_rank(self, p: Array, q: Array, more: Array, given: Array) -> None:
        """``given = (given - p @ q) + more``, in place, with the product of :meth:`low_rank`."""

    def add_at(self, out: Array, index: Array, values: Array) -> None:
        """``out[index] += values`` for distinct indices, none of them negative."""

    def matmul(self, left: Array, right: Array, out: Array) -> None:
        """``out = left @ right``, written in place."""

    def orthonormal(self, stack: Array) -> Array:
        """Orthonormal columns for each matrix of a (batch, rows, columns) stack, by QR. A zero matrix gives unit vectors, never NaN."""


_COMPILED_CASTS = {("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"), ("bfloat16", "float32")}
_INFINITY_16 = {"float16": 0x7C00, "bfloat16": 0x7F80}
_NUMPY_REDUCE: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


class _Numpy:
    tile = 1 << 17

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        return np.empty(tuple(shape), numpy_dtype(dtype))

    def zeros(self, shape: Sequence[int], dtype: str) -> Array:
        return np.zeros(tuple(shape), numpy_dtype(dtype))

    def from_numpy(self, array: np.ndarray[Any, Any]) -> Array:
        return array

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def cast(self, array: Array, dtype: str) -> Array:
        pair = (dtype_name(array), dtype)
        if pair in _COMPILED_CASTS and (fast := loops(array)):
            result = np.empty(array.shape, numpy_dtype(dtype))
            if pair == ("float32", "float16"):
                fast.to_half(array, result, 1.0)
            elif pair == ("float32", "bfloat16"):
                fast.to_bfloat(array, bits(result))
            elif pair == ("float16", "float32"):
                fast.from_half(array, 1.0, result, SET)
            else:
                fast.from_bfloat(bits(array), result, SET)
            return result
        with np.errstate(over="ignore"):
            return array.astype(numpy_dtype(dtype), copy=False)

    def concat(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate([a.reshape(-1) for a in arrays])

    def as_bytes(self, array: Array) -> Array:
        return array.reshape(-1).view(np.uint8)

    def from_bytes(self, raw: Array, dtype: str, shape: Sequence[int]) -> Array:
        wanted = numpy_dtype(dtype)
        if raw.ctypes.data % wanted.itemsize:
            raw = raw.copy()
        return raw.view(wanted).reshape(tuple(shape))

    def all_finite(self, array: Array) -> bool:
        kind = dtype_name(array)
        if not is_floating(kind) or array.size == 0:
            return True
        if kind == "float32" and (fast := loops(array)):
            return math.isfinite(fast.magnitude(array))
        if kind in _INFINITY_16 and (fast := loops(array)):
            return bool(fast.magnitude_16(bits(array)) < _INFINITY_16[kind])
        flat = array.reshape(-1)
        if kind == "float32":
            with np.errstate(over="ignore", invalid="ignore"):
                if math.isfinite(float(np.dot(flat, flat))):  # one pass at the speed of memory; only a suspicion costs the exact one
                    return True
        return bool(np.isfinite(flat.astype(np.float32) if kind in NARROW_FLOATS else flat).all())

    def absmax(self, array: Array) -> float:
        if dtype_name(array) == "float32" and (fast := loops(array)):
            return float(fast.magnitude(array))
        return abs(max(float(array.max()), -float(array.min()))) if array.size else 0.0

    def rint(self, array: Array) -> Array:
        return np.rint(array)

    def block_absmax(self, blocks: Array) -> Array:
        if dtype_name(blocks) == "float32" and blocks.size and (fast := loops(blocks)):
            tops = np.empty(blocks.shape[0], np.float32)
            fast.magnitudes(blocks, tops)
            return tops
        return np.abs(np.maximum(blocks.max(axis=1), -blocks.min(axis=1)))  # no entry-wise copy; a zero is positive

    def where(self, condition: Array, yes: Array, no: Array | float) -> Array:
        return np.where(condition, yes, np.asarray(no, dtype=yes.dtype))

    def largest(self, vector: Array, k: int) -> tuple[Array, Array]:
        if 0 < k < vector.size and dtype_name(vector) == "float32" and (fast := loops(vector)):
            index, values = np.empty(k, np.int32), np.empty(k, np.float32)
            fast.largest(vector, index, values)
            return index, values
        magnitude = np.abs(vector)
        if k >= vector.size:
            index = np.arange(vector.size, dtype=np.int32)
        else:
            threshold = np.partition(magnitude, vector.size - k)[vector.size - k]
            above = np.flatnonzero(magnitude > threshold)
            level = np.flatnonzero(magnitude == threshold)[: k - above.size]
            index = np.sort(np.concatenate([above, level])).astype(np.int32)
        return index, vector[index]

    def combine(self, op: str, into: Array, other: Array) -> Array:
        return _NUMPY_REDUCE[op](into, other, out=into)

    def sum_of(self, arrays: Sequence[Array], outs: Sequence[Array], factor: float = 1.0) -> None:
        if dtype_name(outs[0]) == "float32" and (fast := loops(*outs, *arrays)):
            fast.sum_of(tuple(arrays), tuple(outs), float(np.float32(factor)))
            return
        for start in range(0, outs[0].size, self.tile):
            part = slice(start, start + self.tile)
            total = arrays[0][part].copy()
            for array in arrays[1:]:
                total += array[part]
            if factor != 1.0:
                total *= factor
            for out in outs:
                out[part] = total

    def copy_checked(self, array: Array, into: Array) -> bool:
        if dtype_name(array) == dtype_name(into) == "float32" and (fast := loops(array, into)):
            return math.isfinite(fast.copied(array, into))
        into[...] = array
        return self.all_finite(into)

    def low_rank(self, p: Array, q: Array, out: Array) -> None:
        if fast := loops(p, q, out):
            fast.low_rank(p, q, out, p.shape[1])
            return
        step = max(1, self.tile // max(1, q.shape[1]))
        for rows in (slice(start, start + step) for start in range(0, p.shape[0], step)):
            np.multiply(p[rows, :1], q[0], out=out[rows])
            for k in range(1, p.shape[1]):
                out[rows] += p[rows, k : k + 1] * q[k]

    def fold_low_rank(self, p: Array, q: Array, more: Array, given: Array) -> None:
        if fast := loops(p, q, more, given):
            fast.fold_low_rank(p, q, more, given, p.shape[1])
            return
        product = np.empty_like(given)
        self.low_rank(p, q, product)
        given -= product
        given += more

    def add_at(self, out: Array, index: Array, values: Array) -> None:
        if dtype_name(out) == dtype_name(values) == "float32" and dtype_name(index) == "int32" and (fast := loops(out, index, values)):
            fast.add_at(out, index, values)
        else:
            out[index] += values

    def matmul(self, left: Array, right: Array, out: Array) -> None:
        np.matmul(left, right, out=out)

    def orthonormal(self, stack: Array) -> Array:
        return np.linalg.qr(stack).Q


class _Torch:
    tile = sys.maxsize

    def __init__(self, like: Array):
        self._torch = sys.modules["torch"]
        self._device = like.device

    def _dtype(self, name: str) -> Any:
        return getattr(self._torch, name)

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        return self._torch.empty(tuple(shape), dtype=self._dtype(dtype), device=self._device)

    def zeros(self, shape: Sequence[int], dtype: str) -> Array:
        return self._torch.zeros(tuple(shape), dtype=self._dtype(dtype), device=self._device)

    def from_numpy(self, array: np.ndarray[Any, Any]) -> Array:
        name = dtype_name(array)
        if name in _FOREIGN_TO_NUMPY:
            return self._torch.from_numpy(array.view(f"i{array.itemsize}")).view(self._dtype(name)).to(self._device)
        return self._torch.from_numpy(array).to(self._device)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        name, host = dtype_name(array), array.detach().cpu()
        if name in _FOREIGN_TO_NUMPY:
            host = host.view(self._dtype(f"int{8 * host.element_size()}"))
        result: np.ndarray[Any, Any] = host.numpy()
        return result.view(numpy_dtype(name)) if name in _FOREIGN_TO_NUMPY else result

    def cast(self, array: Array, dtype: str) -> Array:
        return array.to(self._dtype(dtype))

    def concat(self, arrays: Sequence[Array]) -> Array:
        return self._torch.cat([a.reshape(-1) for a in arrays])

    def as_bytes(self, array: Array) -> Array:
        return array.reshape(-1).view(self._torch.uint8)

    def from_bytes(self, raw: Array, dtype: str, shape: Sequence[int]) -> Array:
        wanted = self._dtype(dtype)
        if raw.data_ptr() % wanted.itemsize:
            raw = raw.clone()
        return raw.view(wanted).reshape(tuple(shape))

    def all_finite(self, array: Array) -> bool:
        return bool(self._torch.isfinite(array).all()) if array.is_floating_point() else True

    def absmax(self, array: Array) -> float:
        return float(array.abs().max()) if array.numel() else 0.0

    def rint(self, array: Array) -> Array:
        return self._torch.round(array)

    def block_absmax(self, blocks: Array) -> Array:
        return blocks.abs().amax(dim=1)

    def where(self, condition: Array, yes: Array, no: Array | float) -> Array:
        return self._torch.where(condition, yes, no)

    def largest(self, vector: Array, k: int) -> tuple[Array, Array]:
        magnitude = vector.abs()
        if k >= vector.numel():
            index = self._torch.arange(vector.numel(), device=self._device)
        else:
            threshold = self._torch.topk(magnitude, k, sorted=True).values[-1]
            above = self._torch.nonzero(magnitude > threshold).reshape(-1)
            level = self._torch.nonzero(magnitude == threshold).reshape(-1)[: k - above.numel()]
            index = self._torch.sort(self._torch.cat([above, level])).values
        return index.to(self._torch.int32), vector[index]

    def combine(self, op: str, into: Array, other: Array) -> Array:
        torch = self._torch
        reduce = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "product": torch.mul}[op]
        return reduce(into, other, out=into)

    def sum_of(self, arrays: Sequence[Array], outs: Sequence[Array], factor: float = 1.0) -> None:
        total = arrays[0].clone()
        for array in arrays[1:]:
            total += array
        if factor != 1.0:
            total *= factor
        for out in outs:
            out.copy_(total)

    def copy_checked(self, array: Array, into: Array) -> bool:
        into.copy_(array)
        return self.all_finite(into)

    def low_rank(self, p: Array, q: Array, out: Array) -> None:
        self._torch.matmul(p, q, out=out)

    def fold_low_rank(self, p: Array, q: Array, more: Array, given: Array) -> None:
        product = self._torch.empty_like(given)
        self.low_rank(p, q, product)
        given -= product
        given += more

    def add_at(self, out: Array, index: Array, values: Array) -> None:
        out.index_add_(0, index.long(), values)

    def matmul(self, left: Array, right: Array, out: Array) -> None:
        self._torch.matmul(left, right, out=out)

    def orthonormal(self, stack: Array) -> Array:
        return self._torch.linalg.qr(stack).Q


_NUMPY = _Numpy()


def ops(array: Array) -> ArrayOps:
    """The operations for arrays like this one, on its device."""
    if isinstance(array, np.ndarray):
        return _NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _Torch(array)
    raise TypeError(f"cannot work on a {type(array).__name__}; expected a numpy array or a torch tensor; convert it first")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name such as ``float32`` or ``bfloat16``."""
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name) if name in _FOREIGN_TO_NUMPY else name)
    return found


def dtype_name(array: Array) -> str:
    """``float32``, ``bfloat16``, ``int64``, ...: the same words for every framework."""
    return str(array.dtype).removeprefix("torch.")


def is_floating(dtype: str) -> bool:
    """Whether entries of this dtype can be NaN or infinite."""
    return dtype.startswith(("float", "bfloat", "complex"))


def bits(array: Array) -> Array:
    """An array's memory as signed integers of the same width, without a copy: sign, exponent and mantissa to work on in place."""
    xp = ops(array)
    return xp.from_bytes(xp.as_bytes(array), f"int{8 * array.itemsize}", array.shape)


def put(into: Array, vector: Array, how: How) -> None:
    """``into = vector``, ``into += vector`` or ``into -= vector``, in place; entries beyond the length of ``into`` are ignored."""
    vector = vector[: into.shape[0]]
    if how == SET:
        into[:] = vector
    elif how == ADD:
        into += vector
    else:
        into -= vector


def nbytes(array: Array) -> int:
    """Size of the array's entries in bytes."""
    return int(array.nbytes)


def loops(*arrays: Array) -> Any:
    """The compiled loops (see ``_kernels.pyi``), when they are there and can work on these arrays: contiguous numpy ones; else None.

    Whoever calls one has numpy code for the other case, which defines the result.
    """
    if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative for a in arrays):
        return None
    return _kernels()


def kernels_built() -> bool:
    """Whether the compiled loops are installed, used or not."""
    return _built() is not None


@cache
def _kernels() -> Any:
    from .settings import Settings

    return None if Settings.from_environ().kernels == "off" else _built()


def _built() -> Any:
    try:
        return import_module(f"{__package__}._kernels")
    except ImportError:
        return None
