"""The compiled loops give numpy's bits, and whatever they are handed they raise or work, within the memory that is theirs."""

import itertools
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite import arrays
from hvdlite.arrays import ADD, SET, SUBTRACT, kernels_built, loops, numpy_dtype, ops
from hvdlite.compression import load, names
from hvdlite.compression._levels import Levels
from hvdlite.compression._two_sided import Cast
from hvdlite.compression.fp16 import _ScaledHalf
from hvdlite.compression.sign import _Signs

pytestmark = pytest.mark.skipif(not kernels_built(), reason="the compiled loops are not installed: no compiler was there")

CODECS = [Cast("float16"), Cast("bfloat16"), Cast("float8_e5m2"), _ScaledHalf(), Levels(13, 8), Levels(100, 4)]
CODECS += [kind for block in (8, 64, 256) for kind in (Levels(block, 8), Levels(block, 4), _Signs(block))]
SPECIAL = [0.0, -0.0, 2.0**-149, -(2.0**-140), 2.0**-126, -(2.0**-127), 3e38, -3.4028234e38, 65504.0, 65519.996, 65520.0, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25]
quickly = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def compiled(action):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_kernels", arrays._built)
        return action()


def plain(action):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_kernels", lambda: None)
        return action()


def bytes_of(value) -> object:
    """Everything in it, bit by bit."""
    if isinstance(value, tuple):
        return tuple(map(bytes_of, value))
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def agree(action) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        assert bytes_of(compiled(action)) == bytes_of(plain(action))


@st.composite
def vectors(draw, multiple: int = 1, most: int = 3 * 256 + 1) -> np.ndarray:
    """Finite float32 of a length that is a multiple, from any entry of a larger array on."""
    size = draw(st.integers(0, most // multiple)) * multiple
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** draw(st.integers(-44, 36))
    values = {
        "normal": lambda: scale * rng.standard_normal(size),
        "ties": lambda: scale * rng.integers(-9, 10, size) / 2,
        "halves": lambda: (1 + rng.integers(0, 2**12, size) * 2.0**-12) * 2.0 ** rng.integers(-20, 16, size),
        "denormal": lambda: rng.integers(-300, 301, size) * 2.0**-149,
        "spread": lambda: rng.standard_normal(size) * 10.0 ** rng.integers(-44, 36, size),
        "special": lambda: rng.choice(SPECIAL, size),
        "words": lambda: (rng.integers(0, 255, size) << 23 | rng.integers(0, 2**23, size) | rng.integers(0, 2, size) << 31).astype(np.uint32).view(np.float32),
    }[draw(st.sampled_from(["normal", "ties", "halves", "denormal", "spread", "special", "words"]))]()
    start = draw(st.integers(0, 15))
    room = np.zeros(start + size, np.float32)
    room[start:] = values.astype(np.float32)
    return room[start:]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@quickly
@given(data=st.data())
def test_codecs(codec, data):
    chunk = data.draw(vectors(multiple=codec.block))
    if not chunk.size:
        chunk = np.zeros(codec.block, np.float32)
    agree(lambda: codec.encode(chunk))
    payload = plain(lambda: codec.encode(chunk))
    length, how = data.draw(st.integers(0, chunk.size)), data.draw(st.sampled_from([SET, ADD, SUBTRACT]))
    before = np.resize(data.draw(vectors()) if data.draw(st.booleans()) else chunk, length)

    def decode() -> np.ndarray:
        into = np.append(before, np.float32(7))
        codec.decode(payload, into[:-1], how)
        return into

    agree(decode)


@quickly
@given(vector=vectors(), data=st.data())
def test_operations(vector, data):
    xp, rng = ops(vector), np.random.default_rng(0)
    agree(lambda: xp.absmax(vector))
    agree(lambda: xp.all_finite(vector))
    agree(lambda: xp.cast(vector, "float16"))
    agree(lambda: xp.cast(vector, "bfloat16"))
    for narrow in ("float16", "bfloat16"):
        there = plain(lambda narrow=narrow: xp.cast(vector, narrow))
        agree(lambda there=there: xp.cast(there, "float32"))
        agree(lambda there=there: xp.all_finite(there))
    shares = [np.roll(vector, 3 * r) for r in range(data.draw(st.integers(1, 5)))]

    def total(factor: float) -> np.ndarray:
        out = np.empty_like(vector)
        xp.sum_of(shares, [out], factor)
        last = [s.copy() for s in shares]
        xp.sum_of(last, [np.empty_like(vector), last[-1]], factor)  # an output may be one of the arrays
        assert last[-1].tobytes() == out.tobytes()
        return out

    for factor in (1.0, 1 / 3):
        agree(lambda factor=factor: total(factor))
    agree(lambda: (into := np.empty_like(vector), xp.copy_checked(vector, into)))
    rank = data.draw(st.integers(1, 9))
    p, q = (np.resize(vector if vector.size else 1, shape).astype(np.float32) for shape in ((data.draw(st.integers(0, 5)), rank), (rank, 7)))
    agree(lambda: (out := np.empty((p.shape[0], 7), np.float32), xp.low_rank(p, q, out)))
    more, given = np.full((p.shape[0], 7), 0.1, np.float32), np.resize(q, (p.shape[0], 7))
    agree(lambda: (out := given.copy(), xp.fold_low_rank(p, q, more, out)))
    if vector.size:
        agree(lambda: xp.block_absmax(vector.reshape(1, -1)))
        agree(lambda: xp.block_absmax(vector.reshape(-1, 1)))
        k = data.draw(st.integers(1, vector.size + 1))
        agree(lambda: xp.largest(vector, k))
        index = np.sort(rng.permutation(vector.size)[:k]).astype(np.int32)

        def added() -> np.ndarray:
            out = vector.copy()
            xp.add_at(out, index, vector[index[::-1]])
            return out

        agree(added)


@pytest.mark.parametrize("size", [1000, 70001])
def test_largest_of_many(size):
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size)
    sets = [normal, np.ones(size), np.zeros(size), rng.integers(-3, 4, size), normal * 10.0 ** rng.integers(-30, 30, size)]
    close = (np.uint32(0x3F800000) + rng.integers(0, 900, size).astype(np.uint32)).view(np.float32)  # differ in their last bits
    for values in (*sets, close):
        vector = np.asarray(values, np.float32)
        for k in (1, 7, size // 100, size // 2, size - 1):
            agree(lambda vector=vector, k=k: ops(vector).largest(vector, k))


def test_every_16_bit_word():
    words = np.arange(1 << 16, dtype=np.uint16)
    for dtype in ("float16", "bfloat16"):
        narrow = words.view(numpy_dtype(dtype))
        wide = plain(lambda narrow=narrow: ops(narrow).cast(narrow, "float32"))
        finite = np.isfinite(wide)
        found = compiled(lambda narrow=narrow: ops(narrow).cast(narrow, "float32"))
        assert found[~np.isnan(wide)].tobytes() == wide[~np.isnan(wide)].tobytes()
        assert np.isnan(found[np.isnan(wide)]).all()
        back = compiled(lambda wide=wide, dtype=dtype: ops(wide).cast(wide, dtype))
        assert back[finite].tobytes() == narrow[finite].tobytes()
        assert np.isnan(back[np.isnan(wide)].astype(np.float32)).all()
        for word in narrow[~finite][::97]:
            mixed = np.append(np.ones(37, narrow.dtype), word)
            assert not compiled(lambda mixed=mixed: ops(mixed).all_finite(mixed))


def test_every_float32_near_a_float16_rounds_alike():
    exponents = np.arange(-30, 18)[:, None]
    mantissas = 1 + np.concatenate([np.arange(0, 64), np.arange(2**23 - 64, 2**23), np.random.default_rng(0).integers(0, 2**23, 2000)]) * 2.0**-23
    vector = (mantissas * 2.0**exponents).astype(np.float32).reshape(-1)
    halves = (1 + (2 * np.arange(2**10) + 1) * 2.0**-11) * 2.0**exponents  # between two neighbours
    for values in (vector, halves.astype(np.float32).reshape(-1), np.nextafter(halves.astype(np.float32), np.float32(np.inf)).reshape(-1)):
        agree(lambda values=values: ops(values).cast(values, "float16"))
        agree(lambda values=values: ops(values).cast(values, "bfloat16"))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_and_kept(bad):
    vector = np.ones(1001, np.float32)
    vector[700] = bad
    assert not compiled(lambda: ops(vector).all_finite(vector))
    for dtype in ("float16", "bfloat16"):
        there = compiled(lambda dtype=dtype: ops(vector).cast(vector, dtype))
        np.testing.assert_array_equal(there.astype(np.float32), vector)
        np.testing.assert_array_equal(compiled(lambda there=there: ops(there).cast(there, "float32")), vector)
    for codec in CODECS:
        compiled(lambda codec=codec: codec.encode(np.resize(vector, 10 * codec.block)))  # rubbish, but no crash


@pytest.mark.parametrize("name", names())
def test_compressors(name, play):
    flats = [np.random.default_rng(seed).standard_normal(5000).astype(np.float32) for seed in range(3)]
    shapes = [("a", (50, 60)), ("b", (2000,))]

    def three_steps() -> tuple:
        ranks = [load(name) for _ in flats]
        played = [play(ranks, flats, shapes, in_place=True).mean for _ in range(3)]
        return (*played, *(q for rank in ranks for quantities in rank.state_dict().values() for q in quantities.values()))

    agree(three_steps)


def test_strided_and_foreign_vectors_are_left_to_numpy():
    vector = np.arange(64, dtype=np.float32)
    aside = np.zeros(4 * 64 + 1, np.uint8)[1:].view(np.float32)
    aside[:] = vector
    for other in (vector[::-1], vector.astype(">f4"), aside):
        assert compiled(lambda other=other: loops(other)) is None
        for codec in CODECS:
            if 64 % codec.block == 0 and other.dtype.isnative and not isinstance(codec, _Signs):
                assert bytes_of(compiled(lambda c=codec, v=other: c.encode(v))) == bytes_of(plain(lambda c=codec, v=other: c.encode(v.copy())))
    assert compiled(lambda: loops(vector)) is not None


def test_the_knob(monkeypatch):
    arrays._kernels.cache_clear()
    monkeypatch.setenv("HVDLITE_KERNELS", "off")
    assert loops(np.zeros(1, np.float32)) is None
    arrays._kernels.cache_clear()
    monkeypatch.setenv("HVDLITE_KERNELS", "auto")
    assert loops(np.zeros(1, np.float32)) is not None
    monkeypatch.undo()
    arrays._kernels.cache_clear()


def test_other_threads_run_meanwhile():
    vector, index, values = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32), np.empty(1 << 20, np.int32), np.empty(1 << 20, np.float32)
    worker = threading.Thread(target=lambda: [arrays._built().largest(vector, index, values) for _ in range(3)])
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
    worker.join()
    assert turns > 100


CALLS = {
    "magnitude": "v", "magnitudes": "vV", "magnitude_16": "h", "to_half": "vHf", "from_half": "hfVi", "to_bfloat": "vH", "from_bfloat": "hVi",
    "to_levels": "vBVnnfn", "from_levels": "bvVnni", "to_signs": "vBVn", "from_signs": "bvVni", "largest": "vIV", "add_at": "Viv", "sum_of": "tTf",
    "copied": "vV", "low_rank": "vvVn", "fold_low_rank": "vvvVn",
}  # fmt: skip


def test_fuzz():
    """Mostly plausible arguments, every one at times a wrong one. What lies around the arrays is untouched."""
    rng, built = random.Random(0), arrays._built()
    counts = dict.fromkeys(CALLS, 0)
    rooms = {"v": np.float32, "h": np.uint16, "b": np.uint8, "i": np.int32}

    def array(kind: str, guards: list) -> object:
        dtype = rng.choice(list(rooms.values())) if rng.random() < 0.03 else rooms[kind.lower()]
        size = rng.choice([0, 1, 2, 4, 8, 16, 32, 64, 128, 256])
        room = np.random.default_rng(rng.randrange(2**31)).integers(0, 256, (size + 64) * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        if rng.random() < 0.5 and dtype is np.int32:
            room[:] = np.arange(room.size) % max(1, size)
        guards.append((room, size, room.tobytes()))
        chosen = room[32 : 32 + size]
        if rng.random() < 0.04:
            chosen = rng.choice([chosen[::-1], chosen.astype(chosen.dtype.newbyteorder()), None, 7, b"abcd", chosen.tobytes()])
        elif rng.random() < 0.03:
            chosen.flags.writeable = False
        elif rng.random() < 0.05 and guards[0][1] and kind not in "tT":
            chosen = guards[0][0][32 : 32 + guards[0][1]]  # overlaps another argument
        return chosen

    for name, _ in itertools.product(CALLS, range(1500)):
        guards: list = []
        arguments = []
        for kind in CALLS[name]:
            if kind in "vVhHbBI" or (kind == "i" and name == "add_at"):
                arguments.append(array(kind, guards))
            elif kind in "tT":
                letter = "v" if kind == "t" else "V"
                arguments.append(tuple(array(letter, guards) for _ in range(rng.randrange(4))) if rng.random() < 0.97 else [1])
            elif kind == "f":
                arguments.append(rng.choice([1.0, 0.5, 2.0**-126, 2.0, 0.1, 1e300, float("inf"), float("nan"), "x"]))
            else:
                arguments.append(rng.choice([0, 1, 2, 4, 8, 8, 16, 64, -1, 3, 2**62, -(2**63), 2**70]))
        try:
            getattr(built, name)(*arguments)
            counts[name] += 1
        except (ValueError, TypeError, OverflowError):
            pass
        for room, size, before in guards:
            assert room[:32].tobytes() == before[: 32 * room.itemsize]
            assert room[32 + size :].tobytes() == before[(32 + size) * room.itemsize :]
    assert all(counts.values()), counts


def test_what_is_written_may_not_overlap_what_is_read():
    room, built = np.zeros(64, np.float32), arrays._built()
    with pytest.raises(ValueError, match="overlaps"):
        built.sum_of((room[:32],), (room[16:48],), 1.0)
    with pytest.raises(ValueError, match="overlaps"):
        built.sum_of((room[:32],), (room[:32], room[:32]), 1.0)
    with pytest.raises(ValueError, match="overlaps"):
        built.to_signs(room[:32], room.view(np.uint8)[:4], np.zeros(4, np.float32), 8)


def test_an_index_outside_is_refused():
    out, built = np.zeros(4, np.float32), arrays._built()
    for index in (4, -1, 2**31 - 1):
        with pytest.raises(ValueError, match="outside"):
            built.add_at(out, np.array([0, index], np.int32), np.ones(2, np.float32))
