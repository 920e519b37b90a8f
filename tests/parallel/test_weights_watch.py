"""Ranks whose weights drift apart are noticed under ``hvdlite ab``."""

import json

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.agreement import WeightsWatch
from hvdlite.telemetry.reports import Reports


@pytest.mark.parametrize("drifts", [False, True])
def test_weights_that_drift_apart_are_noticed_once_and_named(tmp_path, drifts):
    here = hvd.world()
    path, before = tmp_path / "r.jsonl", here.reports
    here.reports = Reports(str(path), None, hvd.rank())
    try:
        weights = {"a": np.ones(5, np.float32), "b": np.ones((2, 3), np.float32)}
        watch = WeightsWatch()
        for step in range(205):
            if drifts and step == 50 and hvd.rank() == hvd.size() - 1:
                weights["b"][1, 2] = np.nextafter(np.float32(1), np.float32(2))
            watch.look(lambda: weights.items())
        here.reports.end(here.metrics)
    finally:
        here.reports = before
    if hvd.rank() == 0:
        found = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
        if drifts and hvd.size() > 1:
            problem = f"ranks 0 and {hvd.size() - 1} have different weights after 100 steps: 1 of 2 parameters, first 'b'"
            assert found == [{"drift": {"step": 100, "problem": problem}}]
        else:
            assert found == []
