"""What no collective sends, and what those along the first dimension cannot do without."""

import ml_dtypes
import numpy as np
import pytest

from hvdlite.errors import SettingError
from hvdlite.operations import (
    AllGatherOperation,
    AllReduceOperation,
    AllToAllOperation,
    BroadcastOperation,
    GroupedAllGatherOperation,
    GroupedReduceScatterOperation,
    ReduceScatterOperation,
    Sum,
)

MAKERS = {
    "allreduce": lambda a: AllReduceOperation("x", [a], Sum, 1, 0),
    "allgather": lambda a: AllGatherOperation("x", a, 1),
    "grouped_allgather": lambda a: GroupedAllGatherOperation("x", [a], 1),
    "alltoall": lambda a: AllToAllOperation("x", a, None, 1, 0),
    "reducescatter": lambda a: ReduceScatterOperation("x", a, Sum, 1, 0),
    "grouped_reducescatter": lambda a: GroupedReduceScatterOperation("x", [a], Sum, 1, 0),
    "broadcast": lambda a: BroadcastOperation("x", [a], 0),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_only_contiguous_numbers_are_sent(kind):
    make = MAKERS[kind]
    for array in (np.ones((3, 4)).T, np.ones((3, 4))[:, ::2], np.asfortranarray(np.ones((3, 4)))):
        with pytest.raises(SettingError, match="'x' is not contiguous"):
            make(array)
    for bad in (np.array([None]), np.array(["word"]), np.array([np.datetime64("2020-01-01")]), np.zeros(2, "i4,f4")):
        with pytest.raises(SettingError, match="'x' has dtype"):
            make(bad)
    with pytest.raises(TypeError, match="cannot work on a list"):
        make([1, 2])
    make(np.ones((3, 4))[1:])
    make(np.ones((3, 4)).astype(ml_dtypes.bfloat16))


NEED_ROWS = [kind for kind in MAKERS if kind not in ("allreduce", "broadcast")]


@pytest.mark.parametrize("kind", NEED_ROWS)
def test_scalars_have_no_rows(kind):
    with pytest.raises(SettingError, match=r"'x(\[0\])?' is a scalar; .* so at least one is expected; reshape it to \(1,\)"):
        MAKERS[kind](np.array(1.0))
    with pytest.raises(SettingError, match=r"'x\[1\]' is a scalar"):
        GroupedAllGatherOperation("x", [np.ones(2), np.array(1.0)], 2)
