"""The simulated step: by hand, and laws that hold for any step."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite.predict.pipeline import Await, Machine, Segment, Send, Wire, Work, simulate

ROOM = Machine(cores=2, threads=1, slots=4, wire=Wire(1e6))
ONE_CORE = replace(ROOM, cores=1)
TWO_BUCKETS = [Segment(0.1, 0, 0), Segment(0.1, 0, 1), Segment(0.05, 0, None)]


def a_millisecond(computes):
    return 0.001


def test_a_step_computed_by_hand():
    """Ready 100, agreed 101, encoded 111, on the wire until 211, there at 213. The second: ready 200; its agreement waits 10 ms behind what is left of the
    first (11,000 bytes at 200 ms) and is there at 212; encoded 222, sent 322, there 324."""
    programs = [[Work(0.01), Send(0, 1e5, 0.002)], [Work(0.01), Send(0, 1e5, 0.002)]]
    found = simulate(TWO_BUCKETS, programs, ROOM, a_millisecond)
    assert found.computed == pytest.approx(0.25)
    assert found.step == pytest.approx(0.324)
    assert found.exposed == pytest.approx(0.074)
    assert found.sending == pytest.approx(0.2)
    assert found.communication_cpu == pytest.approx(0.02)


def test_on_one_core_all_work_is_done_one_after_the_other():
    """Nothing waits, so a step takes the sum of all work, whoever does it; half of it was done beside the computation, which ends as much later."""
    programs = [[Work(0.03)], [Work(0.03)]]
    found = simulate(TWO_BUCKETS, programs, ONE_CORE, lambda _: 0.0)
    assert found.step == pytest.approx(0.25 + 0.06)
    assert found.computed > 0.25


def test_more_threads_than_cores_share_them_evenly():
    """One of three threads on one core has a third of it."""
    three = replace(ONE_CORE, threads=2)
    found = simulate([Segment(0.1, 0, 0), Segment(0.2, 0, None)], [[Work(0.1)]], three, lambda _: 0.0)
    assert found.step == pytest.approx(0.4)
    assert found.computed == pytest.approx(0.4), "both end together: 0.2 at two thirds, 0.1 at one third"


def test_what_waits_for_something_else_leaves_its_core_to_others():
    segments = [Segment(0.1, 0, 0), Segment(0, 0.05, None)]
    assert simulate(segments, [[Work(0.05)]], ONE_CORE, lambda _: 0.0).step == pytest.approx(0.15)


def test_pieces_are_on_their_way_while_the_next_one_is_encoded():
    segments = [Segment(0.1, 0, 0), Segment(0, 0, None)]
    in_one = [Work(0.04), Send(0, 4e4, 0)]
    in_two = [Work(0.02), Send(0, 2e4, 0, token=1), Work(0.02), Send(0, 2e4, 0, token=2), Await(1), Await(2)]
    assert simulate(segments, [in_one], ROOM, lambda _: 0.0).step == pytest.approx(0.1 + 0.04 + 0.04)
    assert simulate(segments, [in_two], ROOM, lambda _: 0.0).step == pytest.approx(0.1 + 0.02 + 0.02 + 0.02)


def test_two_requests_of_an_exchange_follow_each_other():
    program = [Work(0.01), Send(0, 1e4, 0.003), Work(0.01), Send(0, 1e4, 0.003), Work(0.01)]
    found = simulate([Segment(0.1, 0, 0), Segment(0, 0, None)], [program], ROOM, a_millisecond)
    assert found.step == pytest.approx(0.1 + 0.001 + 3 * 0.01 + 2 * 0.013)


def test_with_one_slot_the_second_exchange_waits_for_the_first_and_with_two_it_does_not():
    segments, waiting = [Segment(0.1, 0, 0), Segment(0, 0, 1), Segment(0, 0, None)], [[Send(0, 1, 0.05)], [Send(0, 1, 0.05)]]
    assert simulate(segments, waiting, replace(ROOM, slots=1), lambda _: 0.0).step == pytest.approx(0.2, abs=1e-4)
    assert simulate(segments, waiting, replace(ROOM, slots=2), lambda _: 0.0).step == pytest.approx(0.15, abs=1e-4)


@given(size=st.floats(1, 1e6), burst=st.floats(0, 1e6))
def test_a_token_bucket_takes_its_burst_at_once_and_the_rest_at_its_rate(size, burst):
    machine = replace(ROOM, wire=Wire(1e6, burst_bytes=burst))
    found = simulate([Segment(0.1, 0, 0), Segment(0, 0, None)], [[Send(0, size, 0)]], machine, lambda _: 0.0)
    assert found.step == pytest.approx(0.1 + max(0.0, size - burst) / 1e6, abs=1e-6)
    assert 0 <= found.burst_left_bytes <= burst


def test_a_small_message_waits_for_what_lies_in_the_queue_and_for_no_more():
    segments = [Segment(0.1, 0, 0), Segment(0.1, 0, 1), Segment(0, 0, None)]
    programs = [[Send(0, 1e6, 0)], [Send(0, 1, 0, takes_turns=False)]]
    machine = replace(ROOM, wire=Wire(1e6, queue_bytes=5e4))
    alone = simulate(segments, [[], programs[1]], machine, lambda _: 0.0)
    assert alone.step == pytest.approx(0.2, abs=1e-4)
    crowded = simulate(segments, [programs[0], programs[1]], machine, lambda _: 0.0)
    assert crowded.step == pytest.approx(0.1 + 1, abs=1e-4), "the large one is not delayed by the small one"


def test_the_wire_carries_one_request_after_the_other_in_the_agreed_order():
    """The first is decoded while the second, larger one travels."""
    segments = [Segment(0.1, 0, 0), Segment(0, 0, 1), Segment(0, 0, None)]
    found = simulate(segments, [[Send(0, 5e4, 0), Work(0.1)], [Send(0, 1e5, 0)]], ROOM, lambda _: 0.0)
    assert found.step == pytest.approx(0.1 + 0.15)


def test_the_answer_that_is_awaited_is_no_other():
    program = [Send(0, 1e5, 0, token=1), Send(0, 0, 0.001, takes_turns=False, token=2), Await(1), Work(0.05), Await(2)]
    found = simulate([Segment(0.1, 0, 0), Segment(0, 0, None)], [program], ROOM, lambda _: 0.0)
    assert found.step == pytest.approx(0.1 + 0.1 + 0.05)


# --- laws ---

seconds = st.floats(0, 0.1).map(lambda s: round(s, 6))
sends = st.builds(Send, st.floats(0, 0.01), st.floats(0, 1e5), st.floats(0, 0.002), st.booleans())
programs = st.lists(st.one_of(st.builds(Work, seconds), sends), max_size=4)


@st.composite
def steps(draw):
    found = draw(st.lists(programs, min_size=1, max_size=4))
    segments = [Segment(draw(seconds), draw(seconds), number) for number in range(len(found))]
    return [*segments, Segment(draw(seconds), draw(seconds), None)], found


@settings(deadline=None)
@given(steps(), st.sampled_from([0.5, 1, 2, 4]), st.floats(1e4, 1e9))
def test_bounds_of_any_step(step, cores, rate):
    segments, programs = step
    found = simulate(segments, programs, Machine(cores, 1, 2, Wire(rate)), a_millisecond)
    computing = sum(s.cpu_seconds / min(1, cores) + s.other_seconds for s in segments)
    sent = sum(a.wire_bytes for p in programs for a in p if isinstance(a, Send) and a.takes_turns)
    cpu = sum(a.cpu_seconds for p in programs for a in p)
    assert found.step >= found.computed >= computing - 1e-9
    assert found.step >= sent / rate - 1e-9
    assert found.communication_cpu >= cpu - 1e-9
    assert found.exposed == pytest.approx(found.step - found.computed)
    everything = computing + (cpu / min(1, cores / 2)) + sum(a.wire_bytes for p in programs for a in p if isinstance(a, Send)) / rate
    waits = sum(a.delay_seconds for p in programs for a in p if isinstance(a, Send)) + 0.001 * len(programs)
    queued = 1e6 / rate * sum(1 + len(p) for p in programs)  # small messages and agreements behind large ones
    assert found.step <= everything + waits + queued + computing + 1e-6


@settings(deadline=None)
@given(steps(), st.floats(1e4, 1e8), st.floats(1.1, 100))
def test_a_faster_wire_never_makes_a_single_exchange_slower(step, rate, factor):
    segments, programs = [step[0][0], step[0][-1]], step[1][:1]
    slow, fast = (simulate(segments, programs, replace(ROOM, wire=Wire(r)), a_millisecond).step for r in (rate, rate * factor))
    assert fast <= slow + 1e-9


@settings(deadline=None)
@given(steps())
def test_an_infinitely_fast_wire_and_no_work_leave_computation_and_agreement(step):
    segments, programs = step
    free = [[replace(a, cpu_seconds=0.0) if isinstance(a, Work) else Send(0, a.wire_bytes, 0) for a in p] for p in programs]
    machine = replace(ROOM, wire=Wire(math.inf))
    ceiling = simulate(segments, [[] for _ in programs], machine, a_millisecond)
    assert simulate(segments, free, machine, a_millisecond).step == pytest.approx(ceiling.step)
    assert ceiling.step <= sum(s.cpu_seconds + s.other_seconds for s in segments) + 0.002 + 1e-9, "agreements overlap with the computation, but for two"


@settings(deadline=None)
@given(steps(), st.floats(1e4, 1e8), st.floats(1, 4))
def test_sending_more_never_takes_a_single_exchange_less(step, rate, factor):
    segments, program = [step[0][0], step[0][-1]], step[1][0]
    more = [replace(a, wire_bytes=a.wire_bytes * factor, cpu_seconds=a.cpu_seconds * factor) if isinstance(a, Send) else a for a in program]
    machine = replace(ROOM, wire=Wire(rate))
    before, after = (simulate(segments, [p], machine, a_millisecond).step for p in (program, more))
    assert after >= before - 1e-9
