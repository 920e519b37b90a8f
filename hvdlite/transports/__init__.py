"""How ranks exchange bytes: one transport a file, each answering the requests of ``hvdlite.compression``."""

from ._base import CONTROL, Across, NodeReduce, NodeShare, Pending, Topology, Transport, WireRequest

__all__ = ["CONTROL", "Across", "NodeReduce", "NodeShare", "Pending", "Topology", "Transport", "WireRequest"]
