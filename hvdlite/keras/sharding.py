"""Each rank's part of the data: ``fit`` takes its input before any callback can reach it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

import hvdlite
from hvdlite import SettingError

LOG = logging.getLogger("hvdlite")


def shard(*data: Any, equal: bool = True) -> Any:
    """This rank's part: rows ``rank, rank + size, ...`` of arrays, or elements of a ``tf.data.Dataset``. ``x, y = hvd.shard(x, y)``.

    Args:
        data: arrays with as many rows each, or one dataset (before ``batch``, so that every rank has whole batches).
        equal: drop rows that would give some ranks one more, as training needs; False for validation, where every row counts.
            Of a dataset, elements are dropped where its length is known.
    Returns:
        What was given, in the same order; a single thing is returned as such.
    Raises:
        SettingError: the arrays' lengths differ, there are fewer rows than ranks, or this can neither be indexed nor sharded.
    """
    parts = [_part(item, equal) for item in data]
    lengths = {len(item) for item in data if hasattr(item, "__len__") and not hasattr(item, "shard")}
    if len(lengths) > 1:
        raise SettingError(f"arrays of {', '.join(map(str, sorted(lengths)))} rows; as many in each are expected; pass those that belong together")
    return parts[0] if len(parts) == 1 else tuple(parts)


def _part(item: Any, equal: bool) -> Any:
    rank, size = hvdlite.rank(), hvdlite.size()
    if callable(getattr(item, "shard", None)):
        length = int(item.cardinality()) if callable(getattr(item, "cardinality", None)) else -1
        whole = item.take(length // size * size) if equal and length > 0 else item
        return whole.shard(size, rank)
    if not hasattr(item, "__getitem__") or not hasattr(item, "shape"):
        raise SettingError(
            f"{type(item).__name__} cannot be cut into parts; an array, a tensor or a tf.data.Dataset is expected; let the generator or the loader "
            "yield every size-th batch, from hvd.rank() on"
        )
    length = len(item)
    if length < size:
        raise SettingError(f"{length} rows for {size} ranks; at least one each is expected; start fewer ranks, or do not shard this")
    if equal and length % size and rank == 0:
        LOG.info("hvd.shard: %d of %d rows are left out, so that every rank has %d", length % size, length, length // size)
    return item[np.s_[rank : length // size * size if equal else length : size]]
