"""What goes from one start of a job to the next."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launch import handover
from hvdlite.launch.handover import Handover, HostsNote


class Unpicklable:
    """Fails in the middle of a file."""

    def __reduce__(self):
        raise ValueError("not this one")


def test_the_state_of_each_run_comes_back(tmp_path):
    kept = Handover(tmp_path)
    assert kept.recall(0) is None
    kept.keep(0, {"weights": np.arange(5.0)})
    kept.keep(1, "other")
    again = Handover(tmp_path)
    np.testing.assert_array_equal(again.recall(0)["weights"], np.arange(5.0))
    assert again.recall(1) == "other"


@pytest.mark.parametrize("break_it", ["pickle", "disk"])
def test_what_cannot_be_kept_leaves_the_state_before_it(tmp_path, break_it, monkeypatch):
    kept = Handover(tmp_path)
    kept.keep(0, "good")
    digest = kept.digest()
    if break_it == "disk":

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pickle, "dump", full)
    with pytest.raises((ValueError, OSError)):
        kept.keep(0, [np.zeros(1 << 20), Unpicklable()])
    assert kept.recall(0) == "good"
    assert kept.digest() == digest
    assert os.listdir(tmp_path) == ["state.0"]


@given(st.lists(st.integers(0, 3), min_size=2))
def test_the_digest_tells_whether_something_else_was_kept(tmp_path_factory, states):
    kept = Handover(tmp_path_factory.mktemp("kept"))
    before = None
    for state in states:
        kept.keep(0, state)
        digest = kept.digest()
        assert before is None or (digest == before[1]) is (state == before[0])
        before = state, digest


def test_a_note_is_there_until_it_is_taken_back(tmp_path):
    assert handover.announced(tmp_path) is None
    handover.announce(tmp_path, HostsNote(1.5, handover.ADDED))
    assert handover.announced(tmp_path) == HostsNote(1.5, handover.ADDED)
    handover.announce(tmp_path, None)
    handover.announce(tmp_path, None)
    assert handover.announced(tmp_path) is None
