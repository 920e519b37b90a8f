import dataclasses

import pytest
from click.testing import CliRunner

from hvdlite import settings
from hvdlite.cli.run import command as run_command
from hvdlite.errors import SettingError
from hvdlite.settings import Settings

OTHER = {
    "compression": "fp16",
    "transport": "mpi",
    "ranks_per_node": "2,1",
    "check_parameters": "warn",
    "join": "horovod",
    "report_file": "r.jsonl",
    "measure_folder": "measured",
    "stop_at": "steps=3",
    "shadow": "fp16,topk:density=0.01",
    "kernels": "off",
    "log_level": "DEBUG",
    "timeline": "trace.json",
    "timeline_mark_cycles": "True",
}
NAMES = [f.name for f in settings.fields()]


def other(name: str) -> str:
    """A value of the knob that is not its default, as a user writes it."""
    default = getattr(Settings(), name)
    return OTHER.get(name) or str(default + 1)


@pytest.mark.parametrize("name", NAMES)
def test_default_environment_flag_and_back(name, tmp_path, monkeypatch):
    default = getattr(Settings.from_environ({}), name)
    assert default == getattr(Settings(), name)
    changed = Settings.from_environ({settings.env_name(name): other(name)})
    assert getattr(changed, name) != default
    assert str(getattr(changed, name)) == other(name)
    assert dataclasses.replace(changed, **{name: default}) == Settings()

    script = tmp_path / "train.py"
    script.touch()
    is_switch = isinstance(default, bool)
    shown = CliRunner().invoke(run_command, ["-np", "1", "--dry-run", settings.flag_name(name), *([] if is_switch else [other(name)]), str(script)])
    assert shown.exit_code == 0, shown.output
    assert f"{settings.env_name(name)}={1 if is_switch else other(name)} " in shown.output
    assert len([n for n in NAMES if settings.env_name(n) + "=" in shown.output]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_default_may_be_written_out(name):
    written = str(getattr(Settings(), name))
    assert Settings.from_environ({settings.env_name(name): written}) == Settings()
    assert Settings.from_environ({settings.env_name(name): ""}) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("HVDLITE_SLOTS", "(None,)", "is not a whole number"),
        ("HVDLITE_SLOTS", "0", "too small; at least 1"),
        ("HVDLITE_STALL_WARNING_SECONDS", "soon", "is not a number"),
        ("HVDLITE_STALL_WARNING_SECONDS", "-1", "too small"),
        ("HVDLITE_STALL_WARNING_SECONDS", "nan", "too small"),
        ("HVDLITE_TRANSPORT", "pigeon", "choose one of auto, local, mpi"),
    ],
)
def test_bad_values_are_explained(variable, value, reason):
    with pytest.raises(SettingError, match=reason) as caught:
        Settings.from_environ({variable: value})
    assert variable in str(caught.value)


def test_no_more_slots_are_in_use_than_there_are():
    assert Settings.from_environ({"HVDLITE_SLOTS": "6", "HVDLITE_SLOTS_IN_USE": "6"}).slots_in_use == 6
    with pytest.raises(SettingError, match="HVDLITE_SLOTS_IN_USE=5 is too large; there are HVDLITE_SLOTS=4; use fewer, or make more"):
        Settings.from_environ({"HVDLITE_SLOTS_IN_USE": "5"})


def test_choices_ignore_case():
    assert Settings.from_environ({"HVDLITE_LOG_LEVEL": " debug "}).log_level == "DEBUG"


@pytest.mark.parametrize(
    ("variable", "value", "knob", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "1048576", "fusion_threshold_bytes", 1 << 20),
        ("HOROVOD_CACHE_CAPACITY", "64", "cache_capacity", 64),
        ("HOROVOD_CACHE_CAPACITY", "0", "cache_capacity", 8),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "5", "stall_warning_seconds", 5.0),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "7", "stall_shutdown_seconds", 7.0),
        ("HOROVOD_STALL_CHECK_DISABLE", "1", "stall_warning_seconds", 0.0),
        ("HOROVOD_STALL_CHECK_DISABLE", "0", "stall_warning_seconds", 60.0),
        ("HOROVOD_LOG_LEVEL", "warning", "log_level", "WARNING"),
        ("HOROVOD_LOG_LEVEL", "trace", "log_level", "DEBUG"),
        ("HOROVOD_LOG_LEVEL", "fatal", "log_level", "ERROR"),
        ("HOROVOD_TIMELINE", "/a/b.json", "timeline", "/a/b.json"),
        ("HOROVOD_TIMELINE", "DYNAMIC", "timeline", ""),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "1", "timeline_mark_cycles", True),
    ],
)
def test_horovods_variables_count_where_ours_are_not_set(variable, value, knob, expected):
    assert getattr(Settings.from_environ({variable: value}), knob) == expected
    assert Settings.from_environ({variable: value, settings.env_name(knob): other(knob)}) == Settings.from_environ({settings.env_name(knob): other(knob)})
    assert settings.ignored_horovod_variables({variable: value}) == []


def test_what_is_wrong_in_horovods_variable_is_said_of_it():
    with pytest.raises(SettingError, match="HOROVOD_FUSION_THRESHOLD='big' is not a whole number"):
        Settings.from_environ({"HOROVOD_FUSION_THRESHOLD": "big"})


def test_horovods_other_variables_are_named():
    environ = {"HOROVOD_CYCLE_TIME": "1", "HOROVOD_AUTOTUNE": "1", "HOROVOD_TIMELINE": "a", "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "PATH": "p"}
    assert settings.ignored_horovod_variables(environ) == ["HOROVOD_AUTOTUNE", "HOROVOD_CYCLE_TIME"]


def test_an_environment_is_left_as_it_was_found(monkeypatch):
    monkeypatch.setenv("HVDLITE_SLOTS", "3")
    with settings.environment({"HVDLITE_SLOTS": None, "HVDLITE_BUCKET_BYTES": "7"}):
        assert (Settings.from_environ().slots, Settings.from_environ().bucket_bytes) == (4, 7)
    assert (Settings.from_environ().slots, Settings.from_environ().bucket_bytes) == (3, 0)


def test_the_rank_is_the_nearest_launchers():
    assert settings.launcher_rank({}) is None
    assert settings.launcher_rank({"PMIX_RANK": "3"}) == 3
    assert settings.launcher_rank({"PMIX_RANK": "3", "OMPI_COMM_WORLD_RANK": "2"}) == 2
    assert settings.launcher_rank({"OMPI_COMM_WORLD_RANK": "2", "PMI_RANK": "1"}) == 1
    assert settings.launcher_rank({"PMI_RANK": "x"}) is None


def test_scrubbing_leaves_no_tie_to_the_launcher():
    environ = {"PMI_RANK": "1", "PMIX_RANK": "1", "HYDI_CONTROL_FD": "4", "PATH": "p"}
    settings.scrub_launcher_variables(environ)
    assert environ == {"PATH": "p"}
