"""What a job learns from a discovery script."""

import time

import pytest

from hvdlite.errors import LaunchError, SettingError
from hvdlite.launch import discovery
from hvdlite.launch.discovery import ScriptedHosts


@pytest.fixture
def scripted():
    """Makes one, and ends what it began; with the list of its warnings."""
    made = []

    def make(script: str, slots: int | None = None, check=lambda slots: None):
        warned: list[str] = []
        made.append(ScriptedHosts(script, slots, check, warned.append))
        return made[-1], warned

    yield make
    for each in made:
        each.close()


def next_look(hosts, limit=10.0):
    """What a look gives once a run has ended: what was learned, or None where nothing was."""
    end = time.monotonic() + limit
    while hosts._process is None and time.monotonic() < end:
        hosts.look()
    while time.monotonic() < end:
        found = hosts.look()
        if found is not None or hosts._process is None:
            return found
        time.sleep(0.005)
    raise AssertionError("the script does not end")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "ended with code 3; 0 is expected"),
        ("echo localhost", "gives no number of slots"),
        ("echo '!!'", "names no host"),
        ("/no/such/script", "ended with code 127"),
    ],
)
def test_what_is_wrong_at_first_is_an_error(scripted, script, message):
    hosts, _ = scripted(script)
    with pytest.raises(LaunchError, match=message):
        hosts.first()


def test_hosts_that_may_not_be_used_are_an_error_too(scripted):
    def check(slots):
        raise SettingError(f"not {slots}")

    with pytest.raises(LaunchError, match=r"not \{'there': 2\}"):
        scripted("echo there", 2, check)[0].first()


def test_it_is_asked_again_and_a_failure_changes_nothing(scripted, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "INTERVAL_SECONDS", 0.0)
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho a:1\n")
    script.chmod(0o755)
    hosts, warned = scripted(str(script), 4)
    assert hosts.first() == {"a": 1}
    script.write_text("#!/bin/sh\necho a:1; echo b\n")
    assert next_look(hosts) == {"a": 1, "b": 4}
    script.write_text("#!/bin/sh\nexit 9\n")
    assert next_look(hosts) is None
    assert next_look(hosts) is None
    assert len(warned) == 1
    assert "ended with code 9" in warned[0]
    script.write_text("#!/bin/sh\n")
    assert next_look(hosts) == {}


def test_a_look_does_not_wait_and_a_script_that_hangs_is_ended(scripted, monkeypatch):
    hosts, warned = scripted("sleep 60")
    hosts.look()
    begin = time.monotonic()
    assert hosts.look() is None
    assert time.monotonic() - begin < 0.5
    monkeypatch.setattr(discovery, "_LIMIT_SECONDS", 0.0)
    assert hosts.look() is None
    assert "ended with code -9" in warned[0]
