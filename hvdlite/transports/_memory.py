"""Memory that the ranks of one machine share: an arena a rank, in an MPI window, of which every rank sees all."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import Array, numpy_dtype

LINE_BYTES = 64
_MADV_REMOVE = 9  # Linux


class NodeMemory:
    """The arenas, and who has which part of this rank's. A part belongs to a bucket or to a transport; pages are taken when they are touched."""

    def __init__(self, window: Any, arenas: Sequence[Array], rank: int):
        self.window, self.arenas = window, arenas
        self._mine = arenas[rank]
        self._lock = threading.Lock()  # buckets are allocated by the users' threads
        self._used = 0
        self._free: list[tuple[int, int]] = []  # (place, bytes) of what was reserved and released

    def allocate(self, num_elements: int, dtype: str) -> Array | None:
        """A vector in this rank's arena; None when it is full."""
        wanted = numpy_dtype(dtype)
        num_bytes = num_elements * wanted.itemsize
        start = self._take(-(-max(num_bytes, wanted.itemsize) // LINE_BYTES) * LINE_BYTES)
        if start is None:
            return None
        memory = (ctypes.c_char * num_bytes).from_address(self._mine.ctypes.data + start)
        weakref.finalize(memory, _give_back, ctypes.addressof(memory), ctypes.sizeof(memory)).atexit = False
        return np.frombuffer(memoryview(memory), wanted)

    def reserve(self, num_bytes: int) -> int:
        """Whole pages for a transport: where they begin in this rank's arena, or -1 when it is full. What :meth:`release` gave back comes first."""
        with self._lock:
            found = next((part for part in self._free if part[1] == num_bytes), None)
            if found is not None:
                self._free.remove(found)
                return found[0]
        start = self._take(num_bytes, mmap.PAGESIZE)
        return -1 if start is None else start

    def release(self, place: int, num_bytes: int) -> None:
        """Nobody looks at what was reserved any more, on any rank."""
        _give_back(self._mine.ctypes.data + place, num_bytes)
        with self._lock:
            self._free.append((place, num_bytes))

    def offset(self, array: Array) -> int:
        """How far from the beginning of this rank's arena the array lies."""
        return int(array.ctypes.data - self._mine.ctypes.data)

    def holds(self, array: Array) -> bool:
        """Whether the array lies in this rank's arena."""
        return bool(0 <= self.offset(array) < self._mine.size)

    def _take(self, num_bytes: int, line: int = LINE_BYTES) -> int | None:
        with self._lock:
            start = -(-self._used // line) * line
            if start + num_bytes > self._mine.size:
                return None
            self._used = start + num_bytes
            return start


def _give_back(address: int, num_bytes: int) -> None:
    """Nobody looks at this memory any more: take the whole pages in it back from the window."""
    first, last = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_REMOVE)
