"""Horovod's exceptions, as far as hvdlite raises them."""

from hvdlite import HorovodInternalError
from hvdlite.as_horovod import forward
from hvdlite.errors import HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]

__getattr__ = forward(__name__, "hvdlite.errors")
