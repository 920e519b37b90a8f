"""Horovod's exceptions, as far as hvdlite raises them."""

from hvdlite import HorovodInternalError
from hvdlite.as_horovod import forward

__all__ = ["HorovodInternalError"]

__getattr__ = forward(__name__, "hvdlite.errors")
