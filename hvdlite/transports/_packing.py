"""Several arrays as one vector of bytes, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Array, dtype_name, ops


def packed(arrays: Sequence[Array]) -> tuple[Array, Callable[[Array], tuple[Array, ...]]]:
    """The arrays' bytes in one vector, and how to read such a vector back."""
    xp = ops(arrays[0])
    raw = [xp.as_bytes(np.ascontiguousarray(a)) for a in arrays]
    layout = [(dtype_name(a), tuple(a.shape), r.size) for a, r in zip(arrays, raw, strict=True)]

    def read(row: Array) -> tuple[Array, ...]:
        found, start = [], 0
        for dtype, shape, size in layout:
            found.append(xp.from_bytes(row[start : start + size], dtype, shape))
            start += size
        return tuple(found)

    return (raw[0] if len(raw) == 1 else np.concatenate(raw)), read
