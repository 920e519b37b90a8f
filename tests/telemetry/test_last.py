import os

from hvdlite.telemetry.last import LastCollective


def text(folder, rank=3):
    return (folder / f"rank.{rank}.last").read_bytes().rstrip(b"\0").decode("utf-8", "replace")


def test_the_file_says_what_began_last(tmp_path):
    last = LastCollective(str(tmp_path), 3)
    assert text(tmp_path) == ""
    last.write("allreduce", "a much longer name than the next one")
    last.write("broadcast", "x")
    assert text(tmp_path) == "broadcast 'x'"


def test_long_and_foreign_names_fit(tmp_path):
    last = LastCollective(str(tmp_path), 3)
    last.write("allreduce", "ü" * 1000)
    assert text(tmp_path).startswith("allreduce 'üü")
    assert os.path.getsize(tmp_path / "rank.3.last") == 256


def test_another_world_of_the_same_process_begins_anew(tmp_path):
    LastCollective(str(tmp_path), 3).write("allreduce", "old")
    LastCollective(str(tmp_path), 3)
    assert text(tmp_path) == ""


def test_no_folder_no_file_no_trouble(tmp_path):
    for folder in (None, str(tmp_path / "gone")):
        LastCollective(folder, 0).write("allreduce", "x")
    assert list(tmp_path.iterdir()) == []
