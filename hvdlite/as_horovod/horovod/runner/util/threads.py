"""What Horovod's tests import of ``horovod.runner.util.threads``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(target: Callable[..., Any], args: Sequence[Any] = (), name: str | None = None, daemon: bool = True, silent: bool = False) -> threading.Thread:
    """Run ``target(*args)`` in a thread of its own, which is returned, started. ``silent``: what it raises is not shown."""

    def run() -> None:
        try:
            target(*args)
        except BaseException:
            if not silent:
                raise

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread
