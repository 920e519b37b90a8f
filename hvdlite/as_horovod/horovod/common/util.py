"""What scripts and Horovod's tests import of ``horovod.common.util``; the argument ``verbose`` changes nothing here."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

import hvdlite
from hvdlite import settings

P = ParamSpec("P")
R = TypeVar("R")

_FRAMEWORKS = ("tensorflow", "torch", "keras")


def mpi_built(verbose: bool = False) -> bool:
    """Whether ranks can talk through MPI."""
    return hvdlite.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Whether ranks can talk through Gloo."""
    return hvdlite.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """The version of NCCL, 0 without it."""
    return hvdlite.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Whether ranks can talk through IBM's DDL."""
    return hvdlite.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Whether ranks can talk through Intel's oneCCL."""
    return hvdlite.ccl_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework is installed that hvdlite has an adapter for."""
    return ext_base_name in _FRAMEWORKS and find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether tensors of a framework may stay on the GPU."""
    return extension_available(ext_base_name) and hvdlite.cuda_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version ``ver`` is ``target`` or later; both are ``major.minor.patch``, and what follows the patch's number does not count."""
    return _release(ver) >= _release(target)


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"version {version!r} is not major.minor.patch; e.g. 2.16.1 is expected; correct it")
    return tuple(int(number) for number in found.groups())


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Inside, environment variables have these values; None: they are not set."""
    with settings.environment(kwargs):
        yield


def _cache(function: Callable[P, R]) -> Callable[P, R]:
    """Compute once for each set of arguments."""
    return functools.lru_cache(maxsize=None)(function)  # type: ignore[return-value]
