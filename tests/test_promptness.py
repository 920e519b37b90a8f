"""The communication thread's wish to run when it wakes."""

import ctypes
import os
import platform
import struct
import sys
import threading

import pytest

from hvdlite import _promptness

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


def in_a_thread(action):
    found = []
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()
    thread.join()
    return found[0]


def slice_ns() -> int:
    room = ctypes.create_string_buffer(56)
    assert ctypes.CDLL(None).syscall(ctypes.c_long(SCHED_GETATTR[platform.machine()]), 0, room, 56, 0) == 0
    return struct.unpack("=IIQiIQQQ", room.raw[:48])[5]


def prompt_slice_ns() -> int:
    _promptness.make_prompt()
    return slice_ns()


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in SCHED_GETATTR, reason="the system knows no such wish")
def test_only_the_thread_that_asks_gets_short_slices():
    before = slice_ns()
    knows_slices = tuple(map(int, platform.release().split(".")[:2])) >= (6, 12)
    assert in_a_thread(prompt_slice_ns) == (_promptness._SLICE_NS if knows_slices else before)
    assert slice_ns() == before
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(_promptness.ctypes, "CDLL", lambda name: pytest.fail("no system call is expected"))
    for platform_name, machine in (("darwin", "arm64"), ("linux", "s390x")):
        monkeypatch.setattr(_promptness.sys, "platform", platform_name)
        monkeypatch.setattr(_promptness.platform, "machine", lambda machine=machine: machine)
        _promptness.make_prompt()
