import itertools

from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launch.lines import MAX_PENDING, Screen, Stream


def shown(*chunks: bytes, live: bool = True, prefix: str = "[0] ", flush: bool = False) -> str:
    out: list[str] = []
    stream = Stream(Screen(), out.append, prefix=prefix, live=live)
    for chunk in chunks:
        stream.feed(chunk)
        if flush:
            stream.flush()
    stream.close()
    return "".join(out)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


texts = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=12), max_size=8)
places = st.lists(st.integers(0, 400), max_size=8)


@given(texts, places, st.booleans(), st.booleans())
def test_lines_are_whole_however_they_are_cut(lines, where, live, flush):
    data = "".join(line + "\n" for line in lines).encode()
    assert shown(*cut(data, where), live=live, flush=flush) == "".join(f"[0] {line}\n" for line in lines)


@given(st.binary(max_size=200), places)
def test_any_bytes_become_text_and_end_with_a_line(data, where):
    for live in (True, False):
        text = shown(*cut(data, where), live=live)
        assert text == "" or text.endswith("\n")
        text.encode("utf-8")


@given(st.lists(st.tuples(st.integers(0, 2), st.text(st.characters(codec="ascii", exclude_characters="\r\n"), min_size=1, max_size=6)), max_size=12), places)
def test_whole_lines_of_several_ranks_stay_whole(said, where):
    out: list[str] = []
    screen = Screen()
    streams = [Stream(screen, out.append, prefix=f"[{n}] ", live=n == 0) for n in range(3)]
    for rank, line in said:
        for piece in cut(line.encode() + b"\n", where):
            streams[rank].feed(piece)
    assert "".join(out) == "".join(f"[{rank}] {line}\n" for rank, line in said)


@given(texts.filter(bool), places)
def test_progress_of_other_ranks_becomes_its_last_state(states, where):
    data = ("\r".join(states) + "\n").encode()
    last = next((s for s in reversed(states) if s), "")
    assert shown(*cut(data, where), live=False) == f"[0] {last}\n"


def test_a_missing_end_is_added():
    assert shown(b"a\nb") == "[0] a\n[0] b\n"


def test_progress_of_rank_0_is_live():
    assert shown(b" 1%\r", b" 2%\r", b" 3%\n") == "[0]  1%\r[0]  2%\r[0]  3%\n"
    assert shown(b"\r 1%", b"\r 2%", b"\n", flush=True) == "[0]  1%\r[0]  2%\n"


def test_a_windows_line_end_is_one_end():
    assert shown(b"a\r", b"\nb\r\n") == "[0] a\n[0] b\n"
    assert shown(b"a\r", b"\nb\r\n", live=False) == "[0] a\n[0] b\n"


def test_a_character_cut_in_two_is_one():
    assert shown(b"caf\xc3", b"\xa9\n", flush=True) == "[0] café\n"


def test_a_prompt_is_shown_before_its_line_ends():
    out: list[str] = []
    stream = Stream(Screen(), out.append, prefix="[0] ")
    stream.feed(b"name? ")
    assert stream.has_unshown
    stream.flush()
    assert "".join(out) == "[0] name? "
    stream.feed(b"ok\n")
    assert "".join(out) == "[0] name? ok\n"


def two(is_terminal: bool) -> str:
    out: list[str] = []
    screen = Screen(is_terminal=is_terminal)
    first, second = Stream(screen, out.append, prefix="[0] "), Stream(screen, out.append, prefix="[1] ", live=False)
    first.feed(b"\r50%")
    first.flush()
    second.feed(b"hello\n")
    first.feed(b"\r60%")
    first.flush()
    first.feed(b"\n")
    return "".join(out)


def test_a_line_between_progress_is_readable():
    assert two(is_terminal=False) == "[0] 50%\n[1] hello\n[0] 60%\n"
    assert two(is_terminal=True) == "[0] 50%\r\x1b[K[1] hello\n[0] 50%\r[0] 60%\n"


def test_a_huge_line_takes_bounded_memory():
    out: list[str] = []
    stream = Stream(Screen(), out.append, prefix="[1] ", live=False)
    for _ in range(100):
        stream.feed(b"x" * 10_000)
        assert len(stream._pending) + len(stream.shown) <= MAX_PENDING + 20_000
    stream.feed(b"\n")
    assert "".join(out) == "[1] " + "x" * 1_000_000 + "\n"
