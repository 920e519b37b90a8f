"""Laws of forecasts, on a measurement whose numbers are known."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from predictions import COMPUTED, ROUND_SECONDS, made_up

from hvdlite.errors import SettingError
from hvdlite.link import Link, parse_link
from hvdlite.predict.forecast import break_even_gbit, forecast, typical_seconds
from hvdlite.predict.model import Calibration, Luck, StepModel, calibrated, place_of
from hvdlite.predict.place import Place

FREE = Calibration()


@pytest.fixture(scope="module")
def measured():
    return made_up()


def over(link: str, hosts: int = 2, **others) -> Place:
    return Place(hosts, hosts, 4, parse_link(link), **others)


def test_where_computing_takes_all_the_time_compression_cannot_help():
    found = forecast(made_up(slower=50), over("1gbit"), FREE)
    assert not found.can_help
    assert found.highest_speedup < 1.05
    assert found.setting == "none"
    assert found.recommendation == "compression cannot help here: leave it off"
    assert found.ceiling_ms == pytest.approx(50 * 1e3 * COMPUTED, rel=0.05)


def test_on_a_slow_link_it_pays_and_the_setting_is_one_to_paste(measured):
    found = forecast(measured, over("100mbit"), FREE)
    arms = {arm.arm: arm for arm in found.arms}
    assert found.can_help
    best = min(arm.step_ms.middle for arm in found.arms)
    equally_fast = [arm for arm in found.arms if arm.step_ms.middle <= 1.02 * best]
    assert found.setting == max(equally_fast, key=lambda arm: arm.wire_bytes).arm != "none", "of those that are equally fast, the one that loses least"
    assert f'HVDLITE_COMPRESSION={found.setting} (or compression="{found.setting}")' in found.recommendation
    assert [arms[a].verdict for a in ("none", "fp16", "int8", "powersgd:rank=4")] == ["the baseline", "faster", "faster", "faster"]
    plain = sum((512 * 512 + 512 + 256 * 512,)) * 4
    assert arms["none"].wire_bytes == plain
    assert arms["none"].step_ms.middle > 1e3 * plain * 8 / 100e6, "no step is over before its bytes are through"
    for arm in arms.values():
        assert arm.step_ms.low <= arm.step_ms.middle <= arm.step_ms.high
        assert arm.ratio.low <= arm.ratio.middle <= arm.ratio.high
        assert found.ceiling_ms <= arm.step_ms.middle + 1e-9


def test_a_forecast_is_the_same_every_time(measured):
    assert forecast(measured, over("1gbit"), FREE) == forecast(measured, over("1gbit"), FREE)


@pytest.mark.parametrize("arm", ["none", "int8", "topk:density=0.01", "powersgd:rank=4"])
def test_a_faster_link_is_never_slower(measured, arm):
    times = [typical_seconds(StepModel(measured, over(rate), arm)) for rate in ("1mbit", "10mbit", "100mbit", "1gbit", "10gbit", "100gbit")]
    assert all(later <= before * 1.001 for before, later in pairwise(times))
    late = [typical_seconds(StepModel(measured, over(f"1gbit,delay={delay}"), arm)) for delay in ("1us", "1ms", "10ms")]
    assert late == sorted(late)
    assert late[-1] >= late[0] + 0.015, "an agreement and a request, at least, are on their way for 10 ms each"


def test_an_infinitely_fast_network_leaves_computation_agreement_and_copying(measured):
    model = StepModel(measured, over("1gbit"), "none", wire_factor=math.inf)
    step = measured.steps(held=True)[0]
    ceiling = model.ceiling(step).step
    assert ceiling == pytest.approx(COMPUTED + 0.001 * COMPUTED, abs=3 * ROUND_SECONDS)
    copying = sum(a.cpu_seconds for program in model.programs(Luck()) for a in program)
    assert ceiling <= model.play(step).step <= ceiling + copying + 3 * ROUND_SECONDS
    assert typical_seconds(model) <= typical_seconds(StepModel(measured, over("100gbit"), "none"))


def test_what_is_gathered_grows_with_the_hosts_and_what_is_summed_does_not(measured):
    times, sent = {}, {}
    for arm in ("topk:density=0.01", "powersgd:rank=4"):
        models = [StepModel(measured, over("10mbit", hosts), arm) for hosts in (2, 8, 64)]
        times[arm], sent[arm] = [typical_seconds(m) for m in models], [m.wire_bytes for m in models]
    gathered = [total - 2 * (hosts - 1) / hosts * 512 * 4 for total, hosts in zip(sent["topk:density=0.01"], (2, 8, 64), strict=True)]  # less the bias
    assert gathered == [pytest.approx((hosts - 1) * gathered[0], abs=1) for hosts in (2, 8, 64)]
    assert times["topk:density=0.01"] == sorted(times["topk:density=0.01"])
    assert sent["powersgd:rank=4"][-1] <= 2 * sent["powersgd:rank=4"][0], "2 (P-1)/P of the payload"
    found = forecast(measured, over("10mbit", 2), FREE)
    assert {a.arm: a.pays_up_to_ranks for a in found.arms}["topk:density=0.01"] == 64, "at a density of 1 % it would be 2/0.02 = 100"


def test_break_even_is_where_it_turns(measured):
    place = over("1gbit")
    none, int8 = StepModel(measured, place, "none"), StepModel(measured, place, "int8")
    gbit = break_even_gbit(none, int8)
    assert gbit is not None
    assert 0.1 < gbit < 100

    def gain(factor):
        at = replace(place, link=Link(factor * gbit * 1e9))
        return typical_seconds(replace(none, place=at)) - typical_seconds(replace(int8, place=at))

    assert gain(0.9) > 0
    assert gain(1.1) <= 1e-9


def test_ranks_of_a_host_add_up_in_memory_and_only_hosts_exchange(measured):
    place = Place(8, 4, 8, parse_link("100mbit"))
    assert place.exchanging == 4
    one = StepModel(measured, Place(4, 4, 8, parse_link("100mbit")), "none")
    both = StepModel(measured, place, "none")
    assert both.wire_bytes == one.wire_bytes
    assert typical_seconds(both) == pytest.approx(typical_seconds(one), rel=0.05)


def test_the_rest_of_a_measured_step_is_laid_to_waiting():
    """The made-up steps end a millisecond after their computation, whatever is exchanged."""
    measured = made_up()
    found = calibrated(measured)
    assert place_of(measured) == Place(2, 1, 8)
    step = measured.steps(held=True)[3]
    without = StepModel(measured, place_of(measured), "none").play(step).step
    assert found.interference == pytest.approx(0, abs=0.05)
    assert 0 <= found.drag_seconds <= 1.2e-3
    assert without + found.drag_seconds == pytest.approx(COMPUTED * 1.01 + 1e-3, rel=0.02)


def test_what_was_not_measured_is_not_made_up(measured):
    with pytest.raises(SettingError, match=r"fp16 was not timed for 16 ranks .* but for 2, 4; .* --hosts"):
        forecast(measured, over("1gbit", 16), FREE)
    with pytest.raises(SettingError, match="sign was not timed"):
        forecast(measured, over("1gbit"), FREE, ["sign"])
    with pytest.raises(SettingError, match="7 ranks cannot be dealt evenly to 2 hosts"):
        Place(7, 2, 4)
    with pytest.raises(SettingError, match="1 ranks exchange nothing"):
        Place(1, 1, 4)
