"""These tests run on every rank of a job: alone under plain pytest, and on 2, 3 and 4 ranks from tests/test_parallel.py.

A test that fails on one rank ends that rank (-x), and hvdlite ends the others: the whole job fails, in seconds.
"""

import os

import numpy as np
import pytest

import hvdlite

IS_ALONE = os.environ.get("HVDLITE_SIZE", "1") == "1"
collect_ignore = ["with_tensorflow"] if IS_ALONE else []  # tests/adapters has what one process can show, in a tenth of the time


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Alone, there is nobody to disagree with: what needs an ``odd`` rank is left to the jobs of several."""
    if IS_ALONE:
        alone = [item for item in items if "odd" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]


@pytest.fixture(scope="module" if IS_ALONE else "session", autouse=True)  # alone, other folders' tests follow, which begin without a world
def _world():
    hvdlite.init()
    yield
    hvdlite.shutdown()


@pytest.fixture
def rank() -> int:
    return hvdlite.rank()


@pytest.fixture
def size() -> int:
    return hvdlite.size()


@pytest.fixture
def odd(rank: int, size: int) -> bool:
    """Whether this rank, the last one, does it differently. Tests that ask this run on several ranks only."""
    return rank == size - 1


@pytest.fixture
def rng(rank: int) -> np.random.Generator:
    """Random numbers, others on every rank."""
    return np.random.default_rng(1000 + rank)
