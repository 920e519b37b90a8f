"""The tuner: what it tries and for how long, and that the ranks choose the same, which is worth choosing."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite.tuning import MIN_GAIN, Candidate, Decision, Tuner, candidates

CANDIDATES = [Candidate(size, slots) for size in (4, 1, 16, 64) for slots in (4, 2)]
MOST_STEPS = 60


def tried(tuner: Tuner, seconds, agree=lambda mine: mine, most: int = MOST_STEPS) -> list[Candidate]:
    """Train with the tuner, a step taking ``seconds(candidate, number)``; what was in use in each step."""
    used = []
    while tuner.decision is None:
        used.append(tuner.current)
        assert len(used) <= most
        if tuner.step(seconds(tuner.current, len(used))) and tuner.is_through:
            tuner.conclude(agree(tuner.medians()))
    return used


def costs(milliseconds) -> dict[Candidate, float]:
    return dict(zip(CANDIDATES, [m * 1e-3 for m in milliseconds], strict=False))


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=len(CANDIDATES)))
def test_the_fastest_is_chosen_if_it_is_worth_it_and_else_the_default(milliseconds):
    cost = costs(milliseconds)
    tuner = Tuner(list(cost))
    used = tried(tuner, lambda candidate, _: cost[candidate])
    decision = tuner.decision
    assert decision is not None
    assert tuner.current == decision.chosen
    assert set(used) <= set(cost)
    if len(cost) == 1:
        assert not used
        return
    assert set(used) == set(cost)
    default, fastest = cost[CANDIDATES[0]], min(cost.values())
    if fastest <= (1 - MIN_GAIN) * default:
        assert cost[decision.chosen] == fastest
        assert decision == Decision(decision.chosen, fastest, default)
    else:
        assert decision == Decision(CANDIDATES[0], default, default)


@given(st.integers(2, 4), st.integers(2, len(CANDIDATES)), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_ranks_that_measure_differently_change_together_and_choose_the_same(ranks, count, rng: random.Random):
    tuners = [Tuner(CANDIDATES[:count]) for _ in range(ranks)]
    for _ in range(MOST_STEPS):
        assert len({t.current for t in tuners}) == 1
        over = [t.step(rng.choice([None, rng.random(), 100 * rng.random()])) for t in tuners]
        assert len(set(over)) == 1
        if tuners[0].is_through:
            assert all(t.is_through for t in tuners)
            agreed = [max(by_rank) for by_rank in zip(*(t.medians() for t in tuners), strict=True)]
            for tuner in tuners:
                tuner.conclude(agreed)
        if tuners[0].decision is not None:
            break
    assert None not in {t.decision for t in tuners}
    assert len({t.decision for t in tuners}) == 1


@pytest.mark.parametrize("count", range(2, len(CANDIDATES) + 1))
def test_everything_is_visited_twice_for_at_least_three_steps_and_for_sixty_in_all(count):
    tuner = Tuner(CANDIDATES[:count])
    used = tried(tuner, lambda candidate, _: 1.0 if candidate == CANDIDATES[0] else 0.5)
    assert len(used) <= MOST_STEPS
    trial = used[: len(used) - 12]
    assert trial == trial[::-1]
    assert set(Counter(trial).values()) == {len(trial) // count}
    assert len(trial) // count >= 6
    assert set(used[-12:]) == {CANDIDATES[0], tuner.current}  # the last comparison


def test_the_first_step_after_a_change_does_not_count():
    previous = [CANDIDATES[1]]

    def seconds(candidate, _):
        is_first, previous[0] = candidate != previous[0], candidate
        return 5.0 if is_first else 1.0 if candidate == CANDIDATES[0] else 0.9

    tuner = Tuner(CANDIDATES)
    tried(tuner, seconds)
    assert tuner.decision == Decision(CANDIDATES[1], 0.9, 1.0)


def test_a_drift_favours_nobody():
    tuner = Tuner(CANDIDATES)
    tried(tuner, lambda candidate, number: 1.0 + 0.05 * number)
    assert tuner.current == CANDIDATES[0]


def test_a_stalled_step_and_one_without_a_time_do_not_count():
    cost = costs([10.0, 9.0])
    tuner = Tuner(list(cost))
    tried(tuner, lambda candidate, number: 3600.0 if number % 5 == 0 else None if number % 7 == 0 else cost[candidate])
    assert tuner.decision == Decision(CANDIDATES[1], cost[CANDIDATES[1]], cost[CANDIDATES[0]])


def test_what_was_fast_by_chance_is_found_out():
    cost = costs([10.0, 10.0, 10.0])
    tuner = Tuner(list(cost))
    tried(tuner, lambda candidate, number: 5e-3 if candidate == CANDIDATES[2] and number <= 48 else cost[candidate])
    assert tuner.current == CANDIDATES[0]


@pytest.mark.parametrize("unknown", [0, 1])
def test_what_nothing_is_known_of_is_not_chosen_and_beaten_by_nothing(unknown):
    tuner = Tuner(CANDIDATES[:2])
    tried(tuner, lambda candidate, _: None if candidate == CANDIDATES[unknown] else 1.0)
    assert tuner.current == CANDIDATES[0]
    nothing = Tuner(CANDIDATES)
    tried(nothing, lambda *_: None)
    assert nothing.decision == Decision(CANDIDATES[0], math.inf, math.inf)


@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.integers(1, 60), max_size=4), st.lists(st.integers(1, 5), max_size=3))
def test_candidates_differ_in_what_travels(sizes, bucket_bytes, slots):
    def layout(size):
        buckets, filled = [[]], 0
        for number, nbytes in enumerate(sizes):
            buckets[-1].append(number)
            filled += nbytes
            if filled >= size:
                buckets.append([])
                filled = 0
        return [tuple(b) for b in buckets if b]

    default = Candidate(4, 4)
    found = candidates(default, bucket_bytes, slots, layout)
    assert found[0] == default
    kinds = [(tuple(layout(c.bucket_bytes)), min(c.num_slots, len(layout(c.bucket_bytes)))) for c in found]
    assert len(kinds) == len(set(kinds))
    possible = {(tuple(layout(b)), min(s, len(layout(b)))) for b in bucket_bytes for s in slots} | {kinds[0]}
    assert set(kinds) == possible
    if sum(sizes) < min([4, *bucket_bytes]):
        assert found == [default]
