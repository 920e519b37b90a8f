"""Which hosts an elastic job uses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite import SettingError
from hvdlite.launch.slots import KnownHosts, assign, parse

SLOTS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 4))


@given(SLOTS, st.none() | st.integers(1, 9))
def test_every_slot_gets_a_rank_up_to_the_limit_in_the_order_of_hosts(slots, most):
    ranks = assign(slots, most)
    total = sum(slots.values())
    assert len(ranks) == (total if most is None else min(most, total))
    assert all(ranks.count(host) <= number for host, number in slots.items())
    order = list(slots)
    assert [order.index(host) for host in ranks] == sorted(order.index(host) for host in ranks)


@given(st.lists(SLOTS, max_size=5))
def test_hosts_that_stay_keep_their_order_before_new_ones(history):
    hosts, before = KnownHosts(), []
    for slots in history:
        hosts.found(slots)
        now = list(hosts._hosts)
        stayed = [host for host in before if host in slots]
        assert now[: len(stayed)] == stayed
        assert set(now) == set(slots)
        assert hosts.available(0.0) == {host: slots[host] for host in now if slots[host]}
        before = now


def test_a_host_that_failed_stays_away_also_after_it_was_gone():
    hosts = KnownHosts()
    hosts.found({"a": 1, "b": 2})
    assert hosts.failed("a", 0.0)
    assert hosts.available(1e9) == {"b": 2}
    hosts.found({"b": 2})
    hosts.found({"a": 1, "b": 2})
    assert hosts.available(1e9) == {"b": 2}
    assert not hosts.are_barred_for_good()
    assert hosts.failed("b", 0.0)
    assert hosts.are_barred_for_good()


def test_the_only_host_stays():
    hosts = KnownHosts()
    hosts.found({"a": 3})
    assert not hosts.failed("a", 0.0)
    assert hosts.available(0.0) == {"a": 3}
    assert not hosts.are_barred_for_good()


@given(st.floats(1, 20), st.floats(1, 10), st.integers(1, 12))
def test_the_time_on_the_blacklist_doubles_up_to_its_limit(low, factor, failures):
    high = low * factor
    hosts = KnownHosts((low, high))
    hosts.found({"a": 1, "b": 1})
    for _ in range(failures):
        hosts.failed("a", 100.0)
    shortest = min(high, low * 2 ** (failures - 1))
    assert "a" not in hosts.available(100.0 + shortest * 0.999)
    assert not hosts.are_barred_for_good()
    assert "a" in hosts.available(100.0 + min(high, shortest + low) * 1.001)


@pytest.mark.parametrize("wrong", [(0.5, 10), (10, 5), (10, 4000)])
def test_times_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SettingError, match="--blacklist-cooldown-range"):
        KnownHosts(wrong)


def test_both_ways_of_writing_hosts_comments_and_blank_lines():
    text = "# ours\n\nlocalhost:2\r\n127.0.0.1 slots=3  # slow\nnode-1.lan\nlocalhost:1\n"
    assert parse(text, 4, "x") == {"localhost": 3, "127.0.0.1": 3, "node-1.lan": 4}


@pytest.mark.parametrize("line", ["a b c", "-oProxyCommand=x:1", "a:", "a:two", ":3", "a slots=x", "a;b:1"])
def test_what_is_no_host_is_named_with_its_line(line):
    with pytest.raises(SettingError) as caught:
        parse(f"good:1\n{line}\n", 1, "hosts.txt")
    assert str(caught.value).startswith(f"hosts.txt, line 2: {line!r}")


def test_slots_must_come_from_somewhere():
    with pytest.raises(SettingError, match="--slots-per-host"):
        parse("a", None, "x")
