"""Who combines what: every rank an equal share, in the order of the ranks, so that the result does not depend on when messages arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Array, ops

_PIECE_BYTES = 256 << 10
"""Vectors are combined in pieces that stay in the cache between reading and writing."""

_REDUCE: dict[str, np.ufunc] = {"min": np.minimum, "max": np.maximum, "product": np.multiply, "band": np.bitwise_and}


def shares(size: int, ranks: int) -> list[slice]:
    """Equal parts, on borders of cache lines of 4-byte elements."""
    part = -(-size // ranks // 16) * 16 if size >= 16 * ranks else -(-size // ranks)
    return [slice(min(r * part, size), min((r + 1) * part, size)) for r in range(ranks)]


def combine(inputs: Sequence[Array], op: str, factor: float, outputs: Sequence[Array]) -> None:
    """Combine vectors of all ranks, and write the result, times ``factor``, to every output. Outputs may be among the inputs."""
    if op == "sum":
        ops(inputs[0]).sum_of(inputs, outputs, factor)
        return
    step = max(1, _PIECE_BYTES // inputs[0].itemsize)
    for start in range(0, inputs[0].size, step):
        part = slice(start, start + step)
        total = inputs[0][part].copy()
        for other in inputs[1:]:
            _REDUCE[op](total, other[part], out=total)
        if factor != 1.0:
            total *= factor
        for output in outputs:
            output[part] = total
