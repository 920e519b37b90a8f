import numpy as np
import pytest
from comparisons import PLAN, leave_run

from hvdlite.abtest import runs
from hvdlite.abtest.curves import MOST_POINTS, Curve, band, curves_of


def curve(steps, values, *, began=0.0, arm="none"):
    return Curve(arm, 0, "loss", list(map(float, steps)), [began + 0.5 * (s - steps[0]) for s in steps], values)


def test_a_short_run_is_kept_as_it_is_and_a_long_one_as_means(tmp_path):
    leave_run(tmp_path, "none", 0)
    run = runs.read(runs.folder_of(tmp_path, 0, "none"), PLAN)
    (kept,) = curves_of(run)
    assert (kept.steps, kept.values, kept.points_per_value) == (list(range(1, 101)), [0.1 + 1 / i for i in range(1, 101)], 1)
    many = [runs.Reported(i, i * 0.1, i, 0, 0.0, {"loss": float(i), **({"accuracy": 1.0} if i == 7 else {})}) for i in range(1, 1001)]
    thinned, other = curves_of(runs.Run(run.record, many, [], {}, None))
    assert len(thinned.values) == MOST_POINTS
    assert np.mean(thinned.values) == pytest.approx(500.5)
    assert (thinned.steps[-1], thinned.seconds[-1], thinned.points_per_value) == (1000, 100.0, 5)
    assert (other.metric, other.steps, other.values) == ("accuracy", [7], [1.0])


def test_what_is_not_finite_is_no_number():
    reports = [runs.Reported(i, i, i, 0, 0.0, {"loss": value}) for i, value in enumerate([1.0, float("nan"), 3.0])]
    run = runs.Run(runs.Record("none", 0, 0, "", 1.0), reports, [], {}, None)
    assert curves_of(run)[0].values == [1.0, None, 3.0]


def test_a_band_is_mean_and_range_where_all_runs_were():
    found = band([curve([1, 2, 3], [3.0, 2.0, 1.0]), curve([1, 2, 3], [5.0, 4.0, 3.0])], over_time=False)
    assert (found.at.tolist(), found.mean.tolist(), found.low.tolist(), found.high.tolist()) == ([1, 2, 3], [4, 3, 2], [3, 2, 1], [5, 4, 3])
    found = band([curve([1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0]), curve([1, 2, 3], [4.0, None, 2.0])], over_time=False)
    assert (found.at[0], found.at[-1]) == (1, 3), "to where the shortest run went"
    np.testing.assert_allclose(found.mean, 5.0 - found.at, err_msg="a point that is no number is bridged")


def test_over_time_what_came_before_the_first_report_does_not_count():
    found = band([curve([1, 2, 3], [3.0, 2.0, 1.0], began=9.0), curve([1, 2, 3], [3.0, 2.0, 1.0], began=2.0)], over_time=True)
    assert (found.at[0], found.at[-1], found.num_runs) == (0.0, 1.0, 2)
    np.testing.assert_allclose(found.low, found.high, atol=1e-12)


def test_points_make_no_band():
    assert band([curve([5], [1.0])], over_time=False) is None
    assert band([], over_time=False) is None
