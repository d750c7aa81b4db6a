"""What is measured of a service's load: slots in use, and latencies over those of undisturbed queries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.throttle import BLOCK, HORIZON_S, WINDOW_S, Interference, Occupancy

ms = st.floats(1, 1000)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 16)), max_size=30), st.floats(0, 5))
def test_the_mean_in_use_lies_between_the_least_and_the_most(changes, later):
    occupancy, now, used = Occupancy(), 0.0, [0]
    for wait, number in changes:
        now += wait
        occupancy.change(now, number)
        used.append(number)
    assert min(used) - 1e-9 <= occupancy.mean(now + later) <= max(used) + 1e-9


def test_slots_that_are_taken_half_of_the_time_count_as_half():
    occupancy = Occupancy()
    for tick in range(400):
        occupancy.change(tick * 0.05, 4 * (tick % 2))
    assert occupancy.mean(20.0) == pytest.approx(2, rel=0.05)


def test_use_of_long_ago_is_forgotten():
    occupancy = Occupancy()
    occupancy.change(0.0, 5)
    occupancy.change(100.0, 0)
    assert occupancy.mean(100.0) == pytest.approx(5)
    assert occupancy.mean(100.0 + 10 * HORIZON_S) < 0.001


class Service:
    def __init__(self):
        self.interference, self.now = Interference(), 1000.0

    def answers(self, latencies, kind="a", every=0.1):
        for latency in latencies:
            self.now += every
            self.interference.add(self.now, kind, latency)
        return self.ratio

    @property
    def ratio(self):
        return self.interference.ratio(self.now)


def spread(count, low=90, high=110):
    return [low + (high - low) * (number * 7 % 10) / 9 for number in range(count)]


def test_nothing_is_known_before_a_block_of_queries_and_without_queries_now():
    service = Service()
    assert service.answers(spread(BLOCK)) is None
    assert service.answers(spread(2)) is None
    assert service.answers(spread(1)) is not None
    service.now += WINDOW_S
    assert service.ratio is None


def test_undisturbed_queries_lie_below_their_profile_and_disturbed_ones_above():
    service = Service()
    service.answers(spread(4 * BLOCK))
    assert service.answers(spread(100)) < 1.0
    assert service.answers(spread(100, 140, 170)) > 1.0
    assert service.answers(spread(100)) < 1.0


def test_disturbed_queries_do_not_become_the_profile():
    service = Service()
    service.answers(spread(BLOCK))
    assert service.answers(spread(20 * BLOCK, 200, 220)) > 1.8


def test_kinds_of_queries_have_profiles_of_their_own():
    service = Service()
    service.answers(spread(BLOCK), "one image")
    service.answers(spread(BLOCK, 1000, 1010), "sixteen")
    assert service.answers(spread(100, 1000, 1010), "sixteen") <= 1.0


def test_a_profile_is_the_last_hours():
    service = Service()
    service.answers(spread(BLOCK))
    for _ in range(62):
        service.answers(spread(BLOCK, 200, 220), every=60 / BLOCK)
    assert service.answers(spread(100, 200, 220)) <= 1.0


@given(st.lists(st.tuples(st.sampled_from("abc"), ms), max_size=200))
def test_the_ratio_is_a_number_above_nothing_or_unknown(queries):
    service = Service()
    for kind, latency in queries:
        service.answers([latency], kind)
    assert service.ratio is None or service.ratio > 0
