import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from hvdlite.abtest.page.figures.pareto import front

ARMS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8)


@given(ARMS, st.booleans())
def test_nobody_beats_the_front_and_somebody_on_it_beats_or_equals_the_rest(arms, higher_is_better):
    sign = 1 if higher_is_better else -1

    def as_good(a, b):
        return a[0] <= b[0] and sign * a[1] >= sign * b[1]

    found = front(arms, higher_is_better=higher_is_better)
    assert [arms[i][0] for i in found] == sorted({arms[i][0] for i in found}), "fastest first, each time once"
    for i, arm in enumerate(arms):
        if i in found:
            assert not any(as_good(other, arm) and other != arm for other in arms)
        else:
            assert any(as_good(arms[j], arm) for j in found)
