import dataclasses

import pytest
from comparisons import PLAN, analysed, leave_both

from hvdlite.abtest.recommendation import Recommendation, recommend

pytest.importorskip("scipy")


@pytest.fixture
def answer(tmp_path):
    leave_both(tmp_path)
    return analysed(tmp_path)


def judged(answer, **changes):
    """The answer with other verdicts: ``int8={"verdict": "slower"}``; arms that it has not are added."""
    first, second = answer.arms
    arms = [dataclasses.replace(second, arm=arm, judged=dataclasses.replace(second.judged, **values)) for arm, values in changes.items()]
    return dataclasses.replace(answer, arms=[first, *arms])


def test_the_fastest_of_those_that_are_not_worse(answer):
    best = judged(answer, int8={"time_ratio": 0.8}, fp16={"time_ratio": 0.7}, sign={"time_ratio": 0.3, "verdict": "faster but worse"})
    assert recommend(best) == Recommendation("use fp16: a step takes 0.70 of the time with none, and loss is not worse", "HVDLITE_COMPRESSION=fp16")


def test_the_baseline_where_nothing_pays_and_what_else_there_is(answer):
    none = judged(
        answer, int8={"verdict": "slower"}, sign={"verdict": "faster but worse"}, fp16={"verdict": "undecided"}, topk={"verdict": "undecided", "harm": "worse"}
    )
    advice = recommend(none)
    assert advice.setting == "HVDLITE_COMPRESSION=none"
    assert advice.words == (
        "stay with none: nothing is shown to be faster and not worse; sign would be faster at a cost in loss; more seeds may decide on fp16"
    )


def test_few_seeds_allow_no_advice(tmp_path):
    leave_both(tmp_path, 3)
    assert recommend(analysed(tmp_path)) == Recommendation("not yet: too many runs are missing to show anything; run them", "--resume")
    few = analysed(tmp_path, dataclasses.replace(PLAN, seeds=3))
    assert recommend(few) == Recommendation("not yet: 6 seeds are needed to show anything, and there were 3", "--seeds 6")
