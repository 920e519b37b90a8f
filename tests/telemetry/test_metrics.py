import contextlib
import time

from hvdlite.telemetry.metrics import Metrics


def test_payload_and_negotiation_are_counted_apart():
    metrics = Metrics()
    metrics.sent(600, control=False)
    metrics.sent(30, control=True)
    assert (metrics.wire_bytes, metrics.control_bytes) == (600, 30)


def test_waits_add_up_also_when_they_fail():
    metrics = Metrics()
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError), metrics.exposed():
            time.sleep(0.02)
            1 / 0  # noqa: B018
    assert 40 <= metrics.exposed_ms < 5000


def test_a_snapshot_does_not_change_any_more():
    metrics = Metrics()
    before = metrics.snapshot()
    metrics.exchanges += 1
    assert before["exchanges"] == 0
    assert before.keys() == {
        "wire_bytes",
        "control_bytes",
        "dense_bytes",
        "exchanges",
        "negotiation_rounds",
        "codec_ms",
        "exposed_ms",
        "bucket_bytes",
        "slots",
        "steps",
        "steps_ms",
    }


def test_steps_are_timed_from_the_end_of_the_first():
    metrics = Metrics()
    metrics.stepped()
    assert (metrics.steps, metrics.steps_ms) == (1, 0.0)
    time.sleep(0.02)
    metrics.stepped()
    assert metrics.steps == 2
    assert 20 <= metrics.steps_ms < 5000
