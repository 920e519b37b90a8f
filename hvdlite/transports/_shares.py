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
    size, step = inputs[0].size, max(1, _PIECE_BYTES // inputs[0].itemsize)
    if not size:
        return
    xp, total = ops(inputs[0]), np.empty(min(step, size), inputs[0].dtype)
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        into = total[: part.stop - part.start]
        if op == "sum":
            xp.sum_of([vector[part] for vector in inputs], into, factor)
        else:
            into[:] = inputs[0][part]
            for other in inputs[1:]:
                _REDUCE[op](into, other[part], out=into)
            if factor != 1.0:
                into *= factor
        for output in outputs:
            output[part] = into
