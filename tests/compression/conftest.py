"""What every test of a compressor needs: arrays of both kinds, and a game of several ranks with everything written down."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from hvdlite.arrays import ops
from hvdlite.compression import Bucket, Compressor, load, simulate


@dataclass
class Played:
    """One exchange, seen from every rank, in numpy."""

    means: list[np.ndarray]
    sent: list[np.ndarray]
    left: list[np.ndarray]  # given - sent, as error feedback computes it
    sent_bytes: list[int]
    requests: list[object]
    flats: list[np.ndarray]  # bucket.flat afterwards

    @property
    def mean(self) -> np.ndarray:
        return self.means[0]


def _numpy(array) -> np.ndarray:
    return ops(array).to_numpy(array).copy()


def _sent(sent, given: np.ndarray, make) -> np.ndarray:
    if hasattr(sent, "vector"):
        return _numpy(sent.vector())
    return np.where(_subtracted(sent, given, make) == 0, given, -_subtracted(sent, np.zeros_like(given), make))


def _subtracted(sent, given: np.ndarray, make) -> np.ndarray:
    left = make(given.copy())
    sent.subtract_from(left)
    return _numpy(left)


def _torch(array: np.ndarray):
    return pytest.importorskip("torch").from_numpy(array)


ARRAY_KINDS = {"numpy": np.asarray, "torch": _torch}


@pytest.fixture(scope="session", params=ARRAY_KINDS)
def make(request) -> Iterator[Callable]:
    """Turns a numpy array into an array of either kind."""
    if request.param != "torch":
        yield ARRAY_KINDS[request.param]
        return
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # idle threads spin, which on a busy machine costs the arrays of these tests more than it saves
    yield ARRAY_KINDS[request.param]
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def play() -> Callable[..., Played]:
    """Plays one exchange; the result goes to other memory than the gradients unless ``in_place``."""

    def play(compressors: Sequence[Compressor], flats: Sequence[np.ndarray], shapes=None, make=np.asarray, in_place=False, piece_bytes=0) -> Played:
        shapes = shapes or [("weight", flats[0].shape)]
        ranks = len(flats)
        buckets = [Bucket.of(make(flat.copy()), shapes, rank, ranks, None if in_place else make(np.full_like(flat, np.nan))) for rank, flat in enumerate(flats)]
        simulated = simulate(compressors, buckets, piece_bytes)
        outcome = list(zip(simulated.sent, flats, strict=True))
        return Played(
            [_numpy(m) for m in simulated.means],
            [] if in_place else [_sent(sent, flat, make) for sent, flat in outcome],
            [] if in_place else [_subtracted(sent, flat, make) for sent, flat in outcome],
            simulated.sent_bytes,
            list(simulated.requests),
            [_numpy(b.flat) for b in buckets],
        )

    return play


@pytest.fixture(scope="session")
def relative_error() -> Callable[[np.ndarray, np.ndarray], float]:
    """Squared distance from the truth over the truth squared, in double precision."""

    def relative_error(found: np.ndarray, truth: np.ndarray) -> float:
        found, truth = found.astype(np.float64), truth.astype(np.float64)
        return float(np.sum((found - truth) ** 2) / np.sum(truth**2))

    return relative_error


@pytest.fixture(scope="session")
def gives_the_same_bits_in_torch(play) -> Callable[[str, np.ndarray], bool]:
    """Whether three ranks of a compressor end with the same bits on numpy and on torch arrays, with what they keep."""

    def gives_the_same_bits_in_torch(spec: str, flat: np.ndarray) -> bool:
        flats = [flat, flat[::-1].copy(), flat * np.float32(0.3)]
        one, other = (play([load(spec, feedback=False) for _ in flats], flats, make=make) for make in ARRAY_KINDS.values())
        return one.mean.tobytes() == other.mean.tobytes() and all(a.tobytes() == b.tobytes() for a, b in zip(one.left, other.left, strict=True))

    return gives_the_same_bits_in_torch


@pytest.fixture(scope="session")
def awkward() -> np.ndarray:
    """Ties, signed zeros, denormals, halves between two float16 and between two bfloat16, and twelve decades of noise."""
    rng = np.random.default_rng(5)
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-9, 1 + 3 * 2.0**-9, 2 - 2.0**-12, -1.0, 1.0, 0.0, -0.0, 2.0**-149, -(2.0**-140), 2.0**-126]
    noise = rng.standard_normal(3001) * 10.0 ** rng.integers(-12, 1, 3001)
    return np.concatenate([ties, noise, rng.integers(-5, 6, 999) / 2]).astype(np.float32)
