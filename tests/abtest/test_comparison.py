import dataclasses

import pytest
from comparisons import PLAN, analysed, leave_both

from hvdlite.abtest.comparison import compared, differences
from hvdlite.abtest.plan import Plan
from hvdlite.abtest.statistics import Interval

pytest.importorskip("scipy")


@pytest.fixture
def answer(tmp_path):
    leave_both(tmp_path)
    return analysed(tmp_path)


def test_the_same_twice(answer):
    (line,) = compared(answer, answer)
    assert line.startswith("int8: faster and not worse in both; step time 0.")
    assert "do not meet" not in line
    assert differences(answer, answer) == []


def test_intervals_that_do_not_meet_are_named_and_arms_that_one_lacks(answer):
    none, int8 = answer.arms
    slow = dataclasses.replace(int8.judged, verdict="slower", time_ratio=1.5, time_ratio_interval=Interval(1.4, 1.6, "t"))
    arms = [none, dataclasses.replace(int8, judged=slow), dataclasses.replace(int8, arm="sign")]
    first, second = compared(answer, dataclasses.replace(answer, arms=arms))
    assert first.startswith("int8: faster and not worse in the first, slower in the second; step time ")
    assert "1.500 [1.400, 1.600] of the baseline's, intervals that do not meet" in first
    assert first.count("do not meet") == 1, "the metric is the same"
    assert second == "sign: only in the second"


def test_in_what_the_experiments_differ(answer, tmp_path):
    b = analysed(tmp_path, Plan(PLAN.command, PLAN.arms, 6, 4))
    b = dataclasses.replace(b, job={**b.job, "transport": "mpi"}, machine={**b.machine, "cores": "96"})
    assert differences(answer, b) == ["size: 2 and 4", f"cores: {answer.machine['cores']} and 96", "transport: shared_memory and mpi"]
