"""Let a thread that sleeps most of the time run as soon as it wakes, on Linux.

The communication thread looks at messages for microseconds at a time while the training thread computes without pause. With several
ranks on a machine they share cores, and by default a thread that wakes may wait for the end of the other's time slice, milliseconds.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

_SLICE_NS = 100_000
_TIMER_SLACK_NS = 5_000
_PR_SET_TIMERSLACK = 29
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def make_prompt() -> None:
    """Ask for short time slices (Linux 6.12: such a thread need not wait for the slice of another one) and exact sleeps, for the calling thread.

    Neither gives it more time than others. Where the system knows no such wish it does nothing: only promptness is lost.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_TIMER_SLACK_NS), 0, 0, 0)
    # struct sched_attr: size, policy (0: the usual one), flags, nice, priority, runtime (here: the slice), deadline, period
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, 0, 0, _SLICE_NS, 0, 0)
    libc.syscall(ctypes.c_long(number), 0, attributes, 0)
