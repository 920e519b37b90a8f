from collections import Counter
from dataclasses import replace

import pytest

from hvdlite.abtest import files
from hvdlite.abtest.plan import Plan, begin
from hvdlite.errors import HvdliteError, SettingError

PLAN = Plan(("python", "train.py", "--seed={seed}"), ("none", "fp16", "int8"), 6, 2)


def test_runs_are_interleaved():
    assert replace(PLAN, arms=("a", "b"), seeds=2).order() == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]
    order = PLAN.order()
    assert Counter(order) == Counter((seed, arm) for seed in range(6) for arm in PLAN.arms)
    places = {arm: sorted(order.index((seed, arm)) % 3 for seed in range(6)) for arm in PLAN.arms}
    assert set(map(tuple, places.values())) == {(0, 0, 1, 1, 2, 2)}, "each arm is as often first, second and last"


def test_the_seed_reaches_the_command():
    assert PLAN.command_for(4) == ["python", "train.py", "--seed=4"]


def test_a_plan_is_kept_and_compared(tmp_path):
    folder = tmp_path / "ab"
    with pytest.raises(SettingError, match="--resume finds no comparison"):
        begin(PLAN, folder, resume=True)
    begin(PLAN, folder, resume=False)
    begin(PLAN, folder, resume=True)
    with pytest.raises(SettingError, match="holds a comparison already"):
        begin(PLAN, folder, resume=False)
    for change in ({"arms": ("none", "int8")}, {"seeds": 7}, {"command": ("python", "other.py")}, {"margin": 0.1}, {"stop_at": "steps=3"}):
        with pytest.raises(SettingError, match=f"--resume with another {next(iter(change))}"):
            begin(replace(PLAN, **change), folder, resume=True)


def test_no_other_folder_is_written_to(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SettingError, match="is not empty and holds no comparison"):
        begin(PLAN, tmp_path, resume=False)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "f"
    files.write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(HvdliteError, match=r"cannot write .* \(No space left on device\).*--resume"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
