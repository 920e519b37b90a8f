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


def test_what_of_a_wait_was_computing_is_exact_whenever_the_wait_began():
    metrics = Metrics()
    for waits_before, waits_after in ((0.0, 0.02), (0.02, 0.0)):  # a wait that began within the computing, and one that ended in it
        wait = metrics.exposed()
        if waits_after == 0.0:
            wait.__enter__()
        began, waited = time.perf_counter(), metrics.waited()
        time.sleep(waits_before or 0.01)
        wait.__exit__(None, None, None) if waits_after == 0.0 else wait.__enter__()
        time.sleep(waits_after or 0.01)
        metrics.coded(time.perf_counter() - began, metrics.waited() - waited, is_encoding=waits_before == 0.0)
        if waits_after:
            wait.__exit__(None, None, None)
    assert 20 <= metrics.exposed_encode_ms <= metrics.encode_ms - 9
    assert 20 <= metrics.exposed_decode_ms <= metrics.decode_ms - 9
    assert metrics.exposed_encode_ms + metrics.exposed_decode_ms <= metrics.exposed_ms


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
        "encode_ms",
        "decode_ms",
        "exposed_ms",
        "exposed_encode_ms",
        "exposed_decode_ms",
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
