import sys

import pytest
from comparisons import PLAN, leave_run

from hvdlite.abtest import runs
from hvdlite.abtest.tensorboard import Scalars
from hvdlite.errors import HvdliteError, MissingDependencyError, SettingError

tensorboardX = pytest.importorskip("tensorboardX")


def events(folder):
    """Tag, step, value, time, of every event."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events*")
    data, found = path.read_bytes(), []
    while data:  # TFRecord: length, checksum, record, checksum
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        found += [(value.tag, event.step, value.simple_value, event.wall_time) for value in event.summary.value]
        data = data[16 + length :]
    return found


@pytest.fixture
def run(tmp_path):
    leave_run(tmp_path / "out", "topk:density=0.01", 3, step_s=0.01)
    return runs.read(runs.folder_of(tmp_path / "out", 3, "topk:density=0.01"), PLAN)


def test_every_report_and_the_counters_a_step_are_there(tmp_path, run):
    Scalars(tmp_path / "tb", resume=False).write(run)
    found = events(tmp_path / "tb" / "seed3.topk-density=0.01")
    losses = [(step, value) for tag, step, value, _ in found if tag == "loss"]
    assert losses == [(i, pytest.approx(0.1 + 1 / i)) for i in range(1, 101)]
    assert {value for tag, _, value, _ in found if tag == "hvdlite/wire_bytes"} == {1000}
    assert [value for tag, _, value, _ in found if tag == "hvdlite/step_ms"] == pytest.approx([10] * 99)
    times = [when for tag, _, _, when in found if tag == "loss"]
    assert times[-1] - times[0] == pytest.approx(0.99, abs=1e-3)


def test_what_is_there_stays_and_what_failed_is_left_out(tmp_path, run):
    scalars = Scalars(tmp_path / "tb", resume=False)
    failed = runs.Run(runs.Record("none", 0, 1, run.record.started, 1.0, "exit code 1"), run.reports, [], {}, None)
    scalars.write(failed)
    assert not (tmp_path / "tb").exists()
    scalars.write(run)
    before = sorted(tmp_path.glob("tb/*/*"))
    Scalars(tmp_path / "tb", resume=True).write(run)
    assert sorted(tmp_path.glob("tb/*/*")) == before
    with pytest.raises(SettingError, match="is not empty; a new folder is expected"):
        Scalars(tmp_path / "tb", resume=False)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, run):
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="is a file; a folder is expected"):
        Scalars(tmp_path / "file", resume=True)
    with pytest.raises(HvdliteError, match=r"cannot write .*finished runs are kept"):
        Scalars(tmp_path / "file" / "tb", resume=False).write(run)


def test_a_full_disk_is_one_line_and_leaves_no_half_a_run(tmp_path, run, monkeypatch):
    """A device that takes nothing; a thread that writes would leave us waiting for it."""
    writer = tensorboardX.RecordWriter
    monkeypatch.setattr(tensorboardX, "RecordWriter", lambda path: writer("/dev/full"))
    with pytest.raises(HvdliteError, match=r"cannot write .*No space left on device"):
        Scalars(tmp_path / "tb", resume=False).write(run)
    assert list((tmp_path / "tb").iterdir()) == []
    monkeypatch.undo()
    Scalars(tmp_path / "tb", resume=True).write(run)
    assert len(events(tmp_path / "tb" / "seed3.topk-density=0.01")) > 100


def test_without_the_library_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingDependencyError, match="pip install tensorboardX"):
        Scalars(tmp_path / "tb", resume=False)
