"""The state machine: each transition of figure 4, hysteresis, and what old signals mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.selection import FUNCTIONS, THRESHOLDS, StateTracker, VariantSignals, next_state
from serfer.core.variants import Place, VariantState
from tests.control.selection.worlds import ACTIVE, INACTIVE, INTERFERED, OVERLOADED


def instance(warm=1, **more):
    return VariantSignals(Place.INSTANCE, warm, **more)


def functions(warm=10, **more):
    return VariantSignals(Place.FUNCTIONS, warm, **more)


@pytest.mark.parametrize("before", list(VariantState))
@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (instance(warm=0), INACTIVE),
        (instance(share=0.5), ACTIVE),
        (instance(share=0.96), OVERLOADED),
        (instance(waiting=1.0), OVERLOADED),
        (instance(share=0.96, latency_ratio=3.0), OVERLOADED),  # "not overloaded but" slower is interfered
        (instance(share=0.5, latency_ratio=1.3), INTERFERED),
        (functions(throttles=1), OVERLOADED),
        (functions(share=0.5, latency_ratio=1.6), INTERFERED),
        (functions(share=0.5, cold_share=0.6), INACTIVE),
        (functions(share=0.5, cold_share=0.1), ACTIVE),
        (functions(warm=0), INACTIVE),
    ],
)
def test_signals_far_from_a_threshold_give_one_state_whatever_came_before(before, seen, state):
    assert next_state(before, seen) == state


@pytest.mark.parametrize(
    ("seen", "states"),
    [
        (instance(share=0.9), {ACTIVE: ACTIVE, OVERLOADED: OVERLOADED}),
        (instance(waiting=0.7), {ACTIVE: ACTIVE, OVERLOADED: OVERLOADED}),
        (instance(share=0.3, latency_ratio=1.15), {ACTIVE: ACTIVE, INTERFERED: INTERFERED}),
        (functions(share=0.3, latency_ratio=1.4), {ACTIVE: ACTIVE, INTERFERED: INTERFERED}),
        (functions(share=0.3, cold_share=0.4), {ACTIVE: ACTIVE, INACTIVE: INACTIVE}),
    ],
)
def test_between_two_thresholds_a_state_stays_what_it_was(seen, states):
    assert {before: next_state(before, seen) for before in states} == states


@pytest.mark.parametrize("before", list(VariantState))
def test_signals_older_than_a_period_change_nothing_and_lost_ones_make_a_place_inactive(before):
    for seen in (instance(share=0.1), instance(share=2.0), instance(latency_ratio=9.0)):
        stale = VariantSignals(seen.place, 1, seen.share, latency_ratio=seen.latency_ratio, age_s=5.0)
        lost = VariantSignals(seen.place, 1, seen.share, latency_ratio=seen.latency_ratio, age_s=10.5)
        assert next_state(before, stale) == before
        assert next_state(before, lost) == INACTIVE


SIGNALS = st.builds(
    VariantSignals,
    place=st.sampled_from(Place),
    warm=st.integers(0, 3),
    share=st.floats(0.0, 2.0),
    waiting=st.floats(0.0, 3.0),
    throttles=st.integers(0, 2),
    latency_ratio=st.none() | st.floats(0.5, 4.0),
    cold_share=st.floats(0.0, 1.0),
    age_s=st.floats(0.0, 20.0),
)


@given(before=st.sampled_from(VariantState), seen=SIGNALS)
def test_the_same_signals_again_change_no_state(before, seen):
    after = next_state(before, seen)
    assert next_state(after, seen) == after


@given(st.lists(SIGNALS, max_size=8))
def test_what_a_place_admits_stays_within_bounds(signals):
    tracker = StateTracker()
    for seen in signals:
        states = tracker.observe({("a", "p0"): seen})
        assert THRESHOLDS.least - 1e-12 <= (states.by_variant["a"].admitted or 1.0) <= 1.0


def test_what_a_place_admits_grows_from_a_quarter_where_there_is_room_and_falls_where_there_is_none():
    tracker = StateTracker()
    seen = [tracker.observe({("a", "p0"): instance(share=0.01)}).by_variant["a"].admitted for _ in range(5)]
    assert seen == pytest.approx([0.25, 0.375, 0.5625, 0.84375, 1.0])
    assert tracker.observe({("a", "p0"): instance(share=0.94)}).by_variant["a"].admitted < 1.0
    stale = VariantSignals(Place.INSTANCE, 1, share=0.94, age_s=3.0)
    before = tracker.observe({("a", "p0"): instance(share=0.94)}).by_variant["a"].admitted
    assert tracker.observe({("a", "p0"): stale}).by_variant["a"].admitted == before


def test_an_interfered_variant_that_no_query_tries_is_tried_by_few():
    tracker = StateTracker()
    for _ in range(6):
        tracker.observe({("a", "p0"): instance(share=0.1)})
    for _ in range(3):
        places = tracker.observe({("a", "p0"): instance(share=0.5, latency_ratio=2.0)}).by_variant["a"]
        assert places.active is None
    assert tracker.observe({("a", "p0"): instance(share=0.5)}).by_variant["a"].admitted == pytest.approx(1 / 8)


def test_a_place_that_is_gone_from_the_signals_is_forgotten():
    tracker = StateTracker()
    tracker.observe({("a", "p0"): instance(share=2.0), ("b", FUNCTIONS): functions()})
    assert set(tracker.observe({("b", FUNCTIONS): functions()}).by_variant) == {"b"}
    assert tracker.observe({("a", "p0"): instance(share=0.9)}).by_variant["a"].active is not None  # not overloaded
