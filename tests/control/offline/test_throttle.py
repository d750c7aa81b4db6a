"""Offline work never starts beside a load above the thresholds, and always comes back when it has fallen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.throttle import (
    BLOCK,
    HORIZON_S,
    PERIOD_S,
    WINDOW_S,
    Interference,
    Occupancy,
    OfflineThrottle,
    OnlineLoad,
    Thresholds,
)
from serfer.core.errors import UsageError

MOST = 8
QUIET = OnlineLoad("a", utilisation=0.1, latency=0.9)
LIMITS = Thresholds()
shares = st.none() | st.floats(0, 2)
loads = st.builds(OnlineLoad, st.just("a"), shares, shares, st.integers(0, 2))
calm = st.builds(OnlineLoad, st.just("a"), st.none() | st.floats(0, 0.4), st.none() | st.floats(0, 1.0))
seen = st.lists(st.tuples(st.none() | loads, st.integers(0, 3)), max_size=30)


class World:
    """A throttle and its clock, which an observation advances by a period."""

    def __init__(self, **options):
        self.now = 100.0
        self.throttle = OfflineThrottle(self.now, MOST, **{"watches": True, **options})

    def see(self, *given, refused=0):
        self.now += PERIOD_S
        self.throttle.observe(self.now, given, refused)
        return self.limit

    @property
    def limit(self):
        return self.throttle.limit(self.now)

    @property
    def reason(self):
        return self.throttle.reason(self.now)


def grown(to=MOST):
    world = World()
    while world.limit < to:
        world.see(QUIET)
    return world


def after(history):
    world = World()
    for load, refused in history:
        world.see(load, refused=refused)
    return world


@given(seen)
def test_nothing_may_start_above_a_threshold_and_never_more_than_the_most(history):
    world = World()
    for load, refused in history:
        before = world.limit
        limit = world.see(load, refused=refused)
        assert 0 <= limit <= MOST
        assert limit <= before + 1
        if load is not None and load.excess(LIMITS):
            assert (limit, bool(world.reason)) == (0, True)
        if refused and load is not None:
            assert limit <= before / 2
        assert bool(world.reason) == (limit == 0)


@given(seen, st.lists(calm, min_size=5, max_size=5))
def test_work_resumes_within_five_observations_of_a_load_below_the_thresholds(history, below):
    world = after(history)
    for load in below:
        world.see(load)
    assert world.limit >= 1


@given(seen)
def test_beside_a_quiet_service_everything_runs_again_soon(history):
    world = after(history)
    for _ in range(2 + MOST):
        world.see(QUIET)
    assert world.limit == MOST


def test_a_load_between_quiet_and_the_thresholds_themselves_changes_nothing():
    world = grown(3)
    for utilisation in (0.36, 0.40) * 10:
        assert world.see(OnlineLoad("a", utilisation, latency=1.0)) == 3


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (OnlineLoad("a", utilisation=0.41), "utilisation 41% of a, above 40%"),
        (OnlineLoad("a", utilisation=0.1, latency=1.2), "queries of a take 1.20 of their profile"),
        (OnlineLoad("a", throttled=2), "a was refused 2 invocations"),
    ],
)
def test_each_signal_pauses_at_once_and_is_named(load, words):
    world = grown()
    for _ in range(5):
        assert world.see(QUIET, load) == 0
        assert words in world.reason
        assert world.see(QUIET, QUIET) == 0  # one quiet observation ends no pause, however often there is one
    assert world.see(QUIET, QUIET) == 1


def test_a_service_that_is_not_heard_starts_nothing_and_after_a_minute_one_at_a_time():
    world = grown()
    limits = [world.see(None) for _ in range(40)]
    assert limits == [MOST] * 3 + [0] * 27 + [1] * 10
    assert [world.see(QUIET) for _ in range(3)] == [2, 3, 4]


def test_without_observations_time_alone_makes_a_signal_stale():
    world = grown()
    world.now += LIMITS.stale_s + 0.1
    assert world.limit == 0
    assert "nothing was heard" in world.reason


def test_one_unheard_service_of_two_stops_growth_but_not_a_pause_by_the_other():
    world = grown(2)
    assert world.see(None, QUIET) == 2
    assert world.see(None, OnlineLoad("b", 0.9)) == 0


def test_shares_of_one_account_add_up_and_those_of_drivers_do_not():
    half = OnlineLoad("a", utilisation=0.25)
    assert grown().see(half, half) == MOST
    world = grown()
    assert world.see(*[replace(half, of_account=True)] * 2) == 0
    assert "utilisation 50%" in world.reason


def test_refusals_of_its_own_halve_what_runs_and_a_quiet_time_brings_it_back():
    world = World(watches=False)
    assert world.limit == MOST
    assert [world.see(refused=3) for _ in range(4)] == [4, 2, 1, 0]
    assert "3 invocations of its own" in world.reason
    assert [world.see() for _ in range(9)] == [0, 1, 2, 3, 4, 5, 6, 7, MOST]
    world.now += 1e6
    assert world.limit == MOST  # without a service, silence is not unknown


@given(st.integers(1, 20), st.integers(1, 20))
def test_another_bound_keeps_what_was_learnt(first, second):
    world = World(watches=False)
    world.throttle.resize(first)
    assert world.limit == first
    world.see(refused=1)
    world.throttle.resize(second)
    assert world.limit in {min(first // 2, second), *([second] if first == 0 else [])}


@pytest.mark.parametrize(
    "wrong", [{"utilisation": 0.0}, {"utilisation": 1.1}, {"latency": 0.0}, {"latency": float("nan")}]
)
def test_thresholds_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError, match="pauses offline work"):
        Thresholds(**wrong)


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


def test_undisturbed_queries_lie_below_their_profile_and_disturbed_ones_above_and_do_not_become_it():
    service = Service()
    service.answers(spread(4 * BLOCK))
    assert service.answers(spread(100)) < 1.0
    assert service.answers(spread(100, 140, 170)) > 1.0
    assert service.answers(spread(100)) < 1.0
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
