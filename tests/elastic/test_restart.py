"""A rank's side of a job that is started again, with a job that is made up of two folders."""

import logging

import pytest

import hvdlite
from hvdlite import settings
from hvdlite.elastic import ObjectState, State, run
from hvdlite.launch import handover


@pytest.fixture
def folders(tmp_path):
    states, job = tmp_path / "states", tmp_path / "job"
    states.mkdir()
    job.mkdir()
    with settings.environment({"HVDLITE_ELASTIC_DIR": str(states), "HVDLITE_JOB_DIR": str(job)}):
        hvdlite.init()
        yield states, job
        hvdlite.shutdown()


class Left(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def left(monkeypatch):
    """What was told when a rank left."""
    found = []

    def leave(directory, rank, why, error=None):
        found.append((rank, why, error))
        raise Left

    monkeypatch.setattr(handover, "leave", leave)
    return found


def fresh(**attributes) -> ObjectState:
    return ObjectState(hvdlite.broadcast_object, hvdlite.rank, **attributes)


def again():
    """A process of the next start."""
    hvdlite.shutdown()
    hvdlite.init()


def test_the_next_start_goes_on_from_the_last_commit(folders, left):
    @run
    def train(state):
        begun = state.step
        for state.step in range(begun + 1, 20):
            if state.step % 5 == 0:
                state.commit()
            if state.step == 8 and begun == 0:
                raise hvdlite.PeerLeftError("rank 1 has finished")
        return begun

    with pytest.raises(Left):
        train(fresh(step=0))
    ((_, why, error),) = left
    assert (why, type(error)) == (handover.ERROR, hvdlite.PeerLeftError)
    again()
    assert train(fresh(step=0)) == 5


def test_other_hosts_take_the_state_as_it_is(folders, left):
    _, job = folders

    @run
    def train(state):
        if state.step:
            return state.step
        state.step = 3
        handover.announce(job, handover.HostsNote(1.0, handover.REMOVED))
        while True:
            state.check_host_updates()

    with pytest.raises(Left):
        train(fresh(step=0))
    assert left == [(0, handover.HOSTS, None)]
    again()
    (job / handover.HOSTS).unlink()
    assert train(fresh(step=0)) == 3


def test_callbacks_of_a_reset_come_between_the_committed_state_and_the_sync(folders):
    """As the learning rate that is scaled with the number of ranks needs it."""
    log = []

    @run
    def train(state):
        log.append(("train", state.rate))
        state.rate *= 2
        state.commit()

    def begin():
        state = fresh(rate=1.0)

        def scale():
            log.append(("callback", state.rate))
            state.rate = 10.0

        state.register_reset_callbacks([scale])
        return state

    train(begin())
    again()
    train(begin())
    assert log == [("train", 1.0), ("callback", 2.0), ("train", 10.0)]


def test_each_run_of_a_script_has_a_state_of_its_own(folders):
    @run
    def train(state):
        begun = state.step
        state.step += 1
        state.commit()
        return begun

    assert [train(fresh(step=n)) for n in (10, 20)] == [10, 20]
    again()
    assert [train(fresh(step=n)) for n in (10, 20)] == [11, 21]


def test_a_state_that_cannot_be_kept_costs_a_warning_and_not_the_training(folders, monkeypatch, caplog):
    def full(self, number, state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(handover.Handover, "keep", full)
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)

    @run
    def train(state):
        for state.step in range(3):
            state.commit()
        return "done"

    assert train(fresh(step=0)) == "done"
    assert [record.message for record in caplog.records if "the state cannot be kept ([Errno 28] No space left on device)" in record.message] != []
    assert len(caplog.records) == 1


def test_a_state_that_hands_nothing_over_says_so(folders, monkeypatch, caplog):
    class Own(State):
        def save(self): ...
        def sync(self): ...

    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    run(lambda state: state.commit())(Own(hvdlite.broadcast_object, hvdlite.rank))
    assert "Own has no snapshot()" in caplog.text
