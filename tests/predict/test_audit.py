"""A forecast beside an ab."""

import pytest
from predictions import made_up

from hvdlite.abtest.plan import Plan
from hvdlite.abtest.result import ArmResult, Result
from hvdlite.link import parse_link
from hvdlite.predict.audit import audit
from hvdlite.predict.display import show_audit
from hvdlite.predict.forecast import forecast
from hvdlite.predict.model import Calibration
from hvdlite.predict.place import Place


def result(**step_ms):
    arms = [ArmResult(arm, 1, 1, None, None, ms, None, None, None, None, None) for arm, ms in step_ms.items()]
    return Result("1", {}, Plan(("train.py",), tuple(step_ms), 1, 2), 0.0, None, arms, [], [], [])


def test_errors_and_signs():
    found = forecast(made_up(), Place(2, 2, 4, parse_link("100mbit")), Calibration())
    none, fp16 = found.arms[0].step_ms.middle, found.arms[1].step_ms.middle
    assert fp16 < none
    compared = audit(found, result(none=none, fp16=2 * none, int8=None))
    assert [a.arm for a in compared.arms] == ["none", "fp16"], "what was not measured is left out"
    assert [a.error for a in compared.arms] == pytest.approx([0, fp16 / (2 * none) - 1])
    assert [a.is_inside for a in compared.arms] == [True, False]
    assert [a.is_sign_right for a in compared.arms] == [None, False]
    assert (compared.num_signs, compared.num_signs_right) == (1, 0)
    assert "faster or slower: WRONG" in "\n".join(show_audit(compared))
    assert audit(found, result(none=none, fp16=0.9 * none)).arms[1].is_sign_right
