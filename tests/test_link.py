"""Links as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.errors import SettingError
from hvdlite.link import Link, parse_link


@pytest.mark.parametrize(
    ("written", "link"),
    [
        ("1gbit", Link(1e9)),
        ("100mbit", Link(1e8)),
        ("10gbit", Link(1e10)),
        (" 2.5 Gbit/s ", Link(2.5e9)),
        ("64kbit", Link(64e3)),
        ("1gbit,delay=1ms", Link(1e9, 1e-3)),
        ("1gbit, delay = 250us", Link(1e9, 250e-6)),
        ("1e9bit", None),
    ],
)
def test_what_users_write(written, link):
    if link is None:
        with pytest.raises(SettingError, match="1e9bit"):
            parse_link(written)
    else:
        read = parse_link(written)
        assert (read.bits_per_second, read.delay_seconds) == pytest.approx((link.bits_per_second, link.delay_seconds))


@given(st.floats(1, 1e13), st.floats(0, 10).map(lambda x: 0.0 if x < 1e-6 else x))
def test_what_is_written_reads_the_same(bits, delay):
    read = parse_link(Link(bits, delay).spec)
    assert read.bits_per_second == pytest.approx(bits, rel=1e-8)
    assert read.delay_seconds == pytest.approx(delay, rel=1e-8)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", "''.*no rate"),
        ("fast", "'fast' is no rate"),
        ("0gbit", "'0gbit' is no rate above 0"),
        ("-1gbit", "'-1gbit'"),
        ("1", "'1' is no rate above 0 with its unit"),
        ("1gbps", "'1gbps'"),
        ("9" * 400 + "gbit", "is no rate"),
        ("1gbit,1ms", "'1ms' is no option of a link; only delay"),
        ("1gbit,loss=1%", "'loss=1%'"),
        ("1gbit,delay=1", "'1' is no delay; a number with its unit"),
        ("1gbit,delay=-1ms", "'-1ms' is no delay"),
    ],
)
def test_what_cannot_be_read_is_named(written, says):
    with pytest.raises(SettingError, match=says) as caught:
        parse_link(written)
    assert "write e.g. 1gbit" in str(caught.value)
