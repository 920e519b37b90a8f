"""How ranks exchange bytes: one transport a file, each answering the requests of ``hvdlite.compression``."""

from ._base import CONTROL, Pending, Topology, Transport

__all__ = ["CONTROL", "Pending", "Topology", "Transport"]
