"""The closed form, by hand."""

import pytest

from hvdlite.predict.backtest import Run, backtest

PLAIN = Run("none", 100.0, False, {"fast": 1.5, "slow": 6.0})


def test_by_hand():
    """Computing takes 1, so plain communication takes 0.5 and 5. A quarter of the bytes takes 0.125 and 1.25, and the compressor what is left: 0.375."""
    runs = [
        Run("summed", 25.0, False, {"fast": 1.5, "slow": 1 + 1.25 + 0.375}),
        Run("gathered", 25.0, True, {"fast": 2.0, "slow": 7.5}),  # of 4 ranks: half of the bytes on the wire; 2 - 1 - 0.25 for the compressor
        Run("free", 10.0, False, {"fast": 0.9, "slow": 7.0}),  # less than computing takes: no compressor takes less than nothing
    ]
    found = backtest(PLAIN, runs, 1.0, 4, known="fast", asked="slow")
    summed, gathered, free = found.tested
    assert summed.forecast == pytest.approx(2.625 / 6)
    assert summed.error == pytest.approx(0)
    assert gathered.forecast == pytest.approx((1 + 2.5 + 0.75) / 6)
    assert not gathered.is_sign_right, "measured slower than plain"
    assert free.forecast == pytest.approx((1 + 0.5) / 6)
    assert not free.is_sign_right
    assert (found.num_right, len(found.tested)) == (1, 3)
    assert found.median_error == pytest.approx(gathered.error)
