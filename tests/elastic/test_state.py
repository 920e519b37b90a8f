"""What is saved, restored and shared, without ranks: one process, and a broadcast that is made up."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.elastic import HostUpdateResult, ObjectState, State
from hvdlite.errors import HostsUpdatedInterrupt

VALUES = st.recursive(st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3))


def alone(**attributes) -> ObjectState:
    return ObjectState(lambda thing: thing, lambda: 0, **attributes)


@given(VALUES, VALUES, VALUES)
def test_restore_goes_back_to_the_last_save(first, second, third):
    state = alone(a=first)
    state.a = second
    state.restore()
    assert state.a == first
    state.a = second
    state.save()
    state.a = third
    state.restore()
    assert state.a == second


def test_what_changes_in_place_is_restored_too():
    state = alone(history=[1])
    state.history.append(2)
    state.commit()
    state.history.append(3)
    state.restore()
    state.history.append(4)
    state.restore()
    assert state.history == [1, 2]


@given(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1))
def test_a_snapshot_carries_the_save_to_another_process_and_not_what_came_after(values):
    state = alone(**values)
    state.save()
    carried = pickle.dumps(state.snapshot())
    for name in values:
        setattr(state, name, "uncommitted")
    other = alone(**dict.fromkeys(values))
    other.load_snapshot(pickle.loads(carried))
    assert {name: getattr(other, name) for name in values} == values
    for name in values:
        setattr(other, name, "uncommitted")
    other.restore()
    assert {name: getattr(other, name) for name in values} == values


def test_sync_gives_rank_0s_values_as_they_are_and_saves_them():
    root = alone(step=0)
    root.step = 5  # not saved
    sent = []
    root._bcast_object = lambda thing: sent.append(copy.deepcopy(thing)) or thing
    root.sync()
    other = ObjectState(lambda _: sent[0], lambda: 1, step=7)
    other.sync()
    assert (root.step, other.step) == (5, 5)
    other.step = 9
    other.restore()
    assert other.step == 5


@pytest.mark.parametrize(("changes", "skip_sync"), [([1], True), ([2], False), ([1, 2], False), ([1, 1], True)])
def test_news_of_hosts_reach_the_training_once_after_the_commit(changes, skip_sync):
    state = alone(step=0)
    for time, change in enumerate(changes, start=1):
        state.on_hosts_updated(float(time), HostUpdateResult(change))
    state.step = 1
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is skip_sync
    state.step = 2
    state.restore()
    assert state.step == 1
    state.commit()


def test_old_news_are_no_news():
    state = alone(step=0)
    state.on_hosts_updated(2.0, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.on_hosts_updated(2.0, HostUpdateResult.added)
    state.check_host_updates()


def test_only_what_rank_0_has_heard_counts():
    state = ObjectState(lambda _: (0.0, 0.0, HostUpdateResult.no_update), lambda: 1, step=0)
    state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.commit()


def test_a_reset_calls_what_was_registered_in_order_and_forgets_old_news():
    called = []
    state = alone(step=0)
    state.register_reset_callbacks([lambda: called.append(1)])
    state.register_reset_callbacks([lambda: called.append(2)])
    state.reset = lambda: called.append(0)
    state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.on_reset()
    assert called == [0, 1, 2]
    state.check_host_updates()


def test_a_bare_state_has_nothing_to_hand_over():
    assert State(lambda thing: thing, lambda: 0).snapshot() is None
