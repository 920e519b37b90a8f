"""Every transport answers every request as the simulator does: a world of one here, more ranks of MPI in tests/parallel."""

import ast
import inspect
import pkgutil

import ml_dtypes
import numpy as np
import pytest

from hvdlite import transports
from hvdlite.compression import AllGather, AllReduce, AllToAll, Broadcast
from hvdlite.compression._simulate import answer
from hvdlite.transports import CONTROL, Transport
from hvdlite.transports.local import LocalTransport

MEMBERS = sorted(m.name for m in pkgutil.iter_modules(transports.__path__) if not m.name.startswith("_"))
ARRAY = np.arange(6, dtype=np.float32)
REQUESTS = [
    *(AllReduce(ARRAY.copy(), op) for op in ("sum", "min", "max", "product")),
    AllReduce(np.arange(5, dtype=np.uint64), "band"),
    AllReduce(np.array(3.0)),
    AllReduce(np.zeros((0, 2))),
    AllGather((ARRAY, np.ones(2, np.int64))),
    AllGather((ARRAY.view(np.uint8),), (24,)),
    AllGather((ARRAY.astype(ml_dtypes.bfloat16),)),
    AllToAll([(ARRAY, np.ones(2, np.int8))]),
    Broadcast(ARRAY.copy(), 0),
]


def test_a_transport_is_a_file_of_its_name_with_every_method():
    assert {"local", "mpi"} <= set(MEMBERS)
    needed = {n for n, v in vars(Transport).items() if inspect.isfunction(v) and not n.startswith("_")}
    for name in MEMBERS:
        tree = ast.parse(inspect.getsource(__import__(f"hvdlite.transports.{name}", fromlist=["_"])))
        kinds = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("Transport")]
        assert len(kinds) == 1, name
        assert needed <= {f.name for f in kinds[0].body if isinstance(f, ast.FunctionDef)}, name


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("lane", [CONTROL, 0, 3])
def test_alone_every_request_is_its_own_answer(request_, lane):
    (expected,) = answer([request_])
    pending = LocalTransport().start(request_, lane)
    assert pending.done()
    found = pending.answer()
    if isinstance(request_, AllReduce | Broadcast):
        assert np.array_equal(found, expected)
        assert found is request_.array
    else:
        assert [[a.tolist() for a in row] for row in found] == [[a.tolist() for a in row] for row in expected]


def test_alone_there_is_nobody_to_write_to():
    transport = LocalTransport()
    assert transport.notes() == []
    with pytest.raises(ValueError, match="no rank 1"):
        transport.post(1, b"")
    assert not transport.allocate(3, "bfloat16").any()
    transport.close()
    transport.abandon()
