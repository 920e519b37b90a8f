"""The decorator in one process: what is restored, synchronized and called after each kind of failure."""

import pytest

import hvdlite
from hvdlite.elastic import ObjectState, run, run_fn
from hvdlite.errors import DuplicateNameError, EngineError, HorovodInternalError, HostsUpdatedInterrupt, MismatchError, PeerLeftError, StalledError


@pytest.fixture(autouse=True)
def _world():
    hvdlite.init()
    yield
    hvdlite.shutdown()


class Logged(ObjectState):
    """Notes what is asked of it."""

    def __init__(self, log):
        self.log = log
        super().__init__(lambda thing: thing, lambda: 0, step=0)

    def restore(self):
        super().restore()
        self.log.append("restore")

    def sync(self):
        super().sync()
        self.log.append("sync")

    def on_reset(self):
        self.log.append("on_reset")
        super().on_reset()


def played(*events):
    """The log of a training that does one event each time it is called, then returns."""
    log, left = [], list(events)
    state = Logged(log)
    log.clear()

    def train(state, extra):
        log.append("train")
        if left:
            raise left.pop(0)
        return state.step, extra

    result = run_fn(train, lambda: log.append("reset"))(state, extra="more")
    assert result == (0, "more")
    return log


def test_without_trouble_it_is_synchronized_and_called():
    assert [e for e in played() if e != "restore"] == ["sync", "train"]


def test_a_failed_collective_is_followed_by_restore_reset_and_sync():
    assert played(MismatchError("x"))[2:] == ["train", "restore", "reset", "on_reset", "restore", "sync", "train"]


@pytest.mark.parametrize("skip_sync", [True, False])
def test_other_hosts_keep_the_state_and_skip_the_sync_where_no_rank_is_new(skip_sync):
    events = [e for e in played(HostsUpdatedInterrupt(skip_sync)) if e != "restore"]
    assert events == ["sync", "train", "reset", "on_reset", *([] if skip_sync else ["sync"]), "train"]


def test_after_a_failure_the_sync_is_not_skipped():
    events = [e for e in played(HostsUpdatedInterrupt(True), MismatchError("x")) if e != "restore"]
    assert events == ["sync", "train", "reset", "on_reset", "train", "reset", "on_reset", "sync", "train"]


@pytest.mark.parametrize("kind", [PeerLeftError, StalledError, EngineError])
def test_the_loss_of_a_rank_needs_the_launcher_and_says_so(kind):
    with pytest.raises(kind) as caught:
        played(kind("gone"))
    assert any("hvdliterun --min-np" in note for note in caught.value.__notes__)


def test_a_name_used_twice_is_a_fault_of_the_program():
    with pytest.raises(DuplicateNameError):
        played(DuplicateNameError("twice"))


def test_what_fails_for_ever_ends_and_commits_begin_the_count_anew():
    calls = []

    @run
    def train(state):
        calls.append(state.step)
        if len(calls) in (2, 4):
            state.step += 1
            state.commit()
        state.step += 10
        raise HorovodInternalError(f"call {len(calls)}")

    with pytest.raises(HorovodInternalError, match="call 6"):
        train(ObjectState(hvdlite.broadcast_object, hvdlite.rank, step=0))
    assert calls == [0, 0, 1, 1, 2, 2]


def test_other_exceptions_are_the_callers():
    with pytest.raises(ZeroDivisionError):
        played(ZeroDivisionError())


def test_a_reset_makes_the_world_anew():
    before = []

    @run
    def train(state):
        before.append(hvdlite.world())
        if len(before) == 1:
            raise HorovodInternalError
        return hvdlite.is_initialized()

    assert train(ObjectState(hvdlite.broadcast_object, hvdlite.rank, step=0))
    assert before[0] is not before[1]
