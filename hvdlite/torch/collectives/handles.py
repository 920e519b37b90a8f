"""What asynchronous calls return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hvdlite


class Handle:
    """What an asynchronous call returns, for :func:`poll` and :func:`synchronize`."""

    def __init__(self, core: hvdlite.Handle, finish: Callable[[Any], Any]):
        self._core = core
        self._finish = finish

    def done(self) -> bool:
        """Whether the result is there."""
        return self._core.done()

    def wait(self) -> Any:
        """The result; raises what went wrong."""
        return self._finish(self._core.wait())


def poll(handle: Handle) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Wait for an asynchronous call and return its result.

    Raises:
        HorovodInternalError: the collective failed; the message names the tensor and the ranks.
    """
    return handle.wait()
