"""The computed actions are the cheapest of all, and equal those with known burst times."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.windows_guess import (
    BOOT_TICKS,
    BURST,
    QUIET,
    KeepAlivePredictor,
    LengthHistogram,
    best_actions,
    hazards,
)

CHANCE = st.floats(0.0, 1.0)
RESTART = 1e-7  # how much of the average is the first ticks' instead of all ticks'


class World:
    """A clock of a few ticks at the last of which the next burst begins at the latest, and bursts are over before.

    Places are (tick, phase, state); at each, an instance that is off may be started, and one that is not may be kept.
    """

    def __init__(self, ending, beginning, burst_units, quiet_units, boot_ticks):
        self.chances = (np.array([*ending, 1.0, 1.0]), np.array([*beginning, 1.0]))
        self.units = burst_units, quiet_units
        self.boot, self.serves = boot_ticks, boot_ticks + 1
        ticks = len(self.chances[0])
        seen = [(tick, BURST) for tick in range(ticks - 1)] + [(tick, QUIET) for tick in range(1, ticks)]
        self.places = [(*moment, state) for moment in seen for state in range(boot_ticks + 2)]
        self.number = {place: number for number, place in enumerate(self.places)}

    def row(self, place, on):
        """Return what a tick costs that an action is taken at, and the chances of where it leads, by place."""
        tick, phase, state = place
        state = (state or self.boot) if on else 0
        price = self.units[phase] if state == 0 else 1.0 + (self.units[phase] if state < self.serves else 0.0)
        after = 0 if state == 0 else self.serves if state in (1, self.serves) else state - 1
        chance, leads = self.chances[phase][tick], np.zeros(len(self.places))
        if chance > 0:
            leads[self.number[(tick + 1, QUIET, after) if phase == BURST else (0, BURST, after)]] += chance
        if chance < 1:
            leads[self.number[tick + 1, phase, after]] += 1 - chance
        return price, leads

    def averages(self, plans):
        """Return what a tick costs on average, from an instance that is off on; `plans` are (plans, places)."""
        rows = [[self.row(place, on) for place in self.places] for on in (False, True)]
        prices, leads = (np.array([[row[part] for row in each] for each in rows]) for part in (0, 1))
        chosen, which = plans.astype(int), np.arange(len(self.places))
        matrix = np.eye(len(self.places)) - (1 - RESTART) * leads[chosen, which]
        values = np.linalg.solve(matrix, prices[chosen, which][..., None])[..., 0]
        return RESTART * values[:, self.number[0, BURST, 0]]

    def solution(self):
        actions = best_actions(self.chances, *self.units, self.boot)
        return np.array([[actions.on[place] for place in self.places]])


@settings(derandomize=True, max_examples=10)
@given(
    st.lists(CHANCE, min_size=3, max_size=8),
    st.floats(1.0, 30.0),
    st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    st.integers(1, 3),
)
def test_no_other_action_at_any_one_place_is_cheaper(chances, burst_units, quiet_units, boot_ticks):
    world = World(chances[:-1], chances, burst_units, quiet_units, boot_ticks)
    actions = world.solution()
    others = np.repeat(actions, len(world.places), axis=0) ^ np.eye(len(world.places), dtype=bool)
    assert world.averages(actions)[0] <= world.averages(others).min() + 0.05


def only(tick, ticks):
    shares = np.zeros(ticks)
    shares[tick] = 1.0
    return shares


def known(burst, gap, *, boot_ticks, burst_units=26.0, quiet_units=0.0, ticks=120):
    """Return the actions where every burst lasts `burst` ticks and begins `gap` ticks after the one before."""
    chances = hazards(only(burst, ticks), only(gap, ticks))
    return best_actions(chances, burst_units, quiet_units, boot_ticks).on


@pytest.mark.parametrize("boot_ticks", [1, 2, 8])
@pytest.mark.parametrize(("burst", "gap"), [(20, 70), (9, 110)])
def test_an_instance_boots_just_before_a_known_start(boot_ticks, burst, gap):
    on = known(burst, gap, boot_ticks=boot_ticks)
    quiet = on[burst + 1 : gap + 1, QUIET, 0]
    assert quiet.tolist() == [False] * (gap - burst - boot_ticks) + [True] * boot_ticks
    # Started on time it is kept; what serves still when a burst is over is given up at once.
    assert all(on[gap - boot_ticks + 1 + tick, QUIET, boot_ticks - tick] for tick in range(1, boot_ticks))
    assert not on[burst + 1, QUIET, boot_ticks + 1]
    assert on[: burst + 1, BURST, boot_ticks + 1].all()


def test_a_burst_longer_than_the_clock_is_served():
    never = np.zeros(5)
    assert best_actions((never, never), 26.0, 0.0, 8).on[:, BURST].all()


def test_a_warm_started_solution_is_the_same():
    chances = hazards(only(20, 120), only(70, 120))
    cold = best_actions(chances, 26.0, 0.0, 8)
    warm = best_actions(chances, 26.0, 0.0, 8, cold.begin)
    assert (warm.on == cold.on).all()
    assert warm.begin == pytest.approx(cold.begin, abs=0.1)


FULL, NOTHING = 13.0, 0.0
CLOCK = 480  # ticks up to which lengths are distinguished


def periodic(bursts, burst=20, period=100, *, units=FULL, before=30):
    """Return a load by ticks: so many bursts, which begin `period` ticks apart, and the quiet after the last one."""
    return [NOTHING] * before + ([units] * burst + [NOTHING] * (period - burst)) * bursts


def predictions(load, windows=None):
    windows = windows or KeepAlivePredictor()
    on = []
    for units in load:
        windows.tick(units)
        on.append(windows.on)
    return on


def taught(load):
    windows = KeepAlivePredictor()
    predictions(load, windows)
    return windows


def test_predictions_begin_after_three_bursts():
    on = predictions(periodic(4))
    third_is_over = 30 + 2 * 100 + 20
    assert on[:third_is_over] == [None] * third_is_over
    assert None not in on[third_is_over + BOOT_TICKS :]


def test_an_instance_has_booted_just_before_a_burst_begins():
    windows = taught(periodic(10))
    for _ in range(3):
        serves = []
        for units in periodic(1, before=0):
            windows.tick(units)
            serves.append(windows.serves)
        assert all(serves[:18])  # all through the burst, up to where it may end
        assert sum(serves[20:]) <= 8  # and hardly longer; then it serves again when the next one may begin
        assert serves[-1]


def test_a_burst_that_comes_a_tick_early_is_served_from_its_first_tick_on():
    windows = taught(periodic(10))
    predictions(periodic(1, period=99, before=0), windows)
    assert windows.serves


def test_short_gaps_are_idled_through():
    load = periodic(30, burst=10, period=15)
    assert all(predictions(load[30:], taught(load)))


def test_bursts_that_are_rare_and_short_start_nothing():
    draw, load = random.Random(1), []  # noqa: S311 - a load
    for _ in range(25):
        load += [3.0] * 2 + [NOTHING] * draw.randint(100, 470)
    assert not any(predictions(load, taught(load)))


def test_a_load_below_the_instances_price_is_not_a_burst():
    assert predictions([0.9] * 500 + [NOTHING] * 50 + [1.0] * 50) == [None] * 600


def test_one_quiet_tick_does_not_end_a_burst():
    holes = [NOTHING if tick % 5 == 4 else FULL for tick in range(20)]
    assert taught([*holes, *[NOTHING] * 80] * 8)._count == taught(periodic(8, before=0))._count == 8


def test_beyond_the_clock_instances_are_on_exactly_during_bursts():
    windows = taught(periodic(6))
    quiet = predictions([NOTHING] * (CLOCK + 200), windows)
    assert not any(quiet[CLOCK:])
    burst = predictions([FULL] * (CLOCK + 200), windows)
    assert all(burst[CLOCK:])
    assert windows.serves


def test_an_instance_serves_after_its_boot():
    windows = taught(periodic(6)[:-50])  # off, in the middle of a gap
    assert not windows.on
    was_on = 0
    for units in periodic(4, before=40):
        windows.tick(units)
        was_on = was_on + 1 if windows.on else 0
        assert windows.serves == (was_on > BOOT_TICKS)


def test_a_changed_pattern_is_relearned():
    windows = taught(periodic(10, period=100) + periodic(25, period=60, before=0))
    assert predictions(periodic(1, period=60, before=0), windows)[-BOOT_TICKS:] == [True] * BOOT_TICKS


MOST = 40
SEEN = st.lists(st.integers(0, 2 * MOST), max_size=60)


def counted(lengths):
    histogram = LengthHistogram(MOST)
    for ticks in lengths:
        histogram.add(ticks)
    return histogram.shares()


@given(SEEN)
def test_shares_lie_between_zero_and_one_and_sum_to_one_within_the_clock(lengths):
    shares = counted(lengths)
    assert shares.shape == (MOST,)
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-9
    within = [ticks for ticks in lengths if ticks < MOST]
    assert counted(within).sum() == pytest.approx(1.0 if within else 0.0)


def test_a_length_counts_at_and_around_itself():
    shares = counted([10] * 5)
    assert shares.argmax() == 10
    assert shares[8:13].sum() == pytest.approx(1.0)
    assert shares[9] == pytest.approx(shares[11])


def test_lengths_beyond_the_clock_only_reduce_the_sum():
    shares = counted([10, 100] * 200)
    assert shares.sum() == pytest.approx(0.5, abs=0.02)
    assert shares[20:].sum() == 0
    assert counted([100] * 9).sum() == 0
    assert counted([]).sum() == 0


def test_recent_lengths_weigh_more_and_older_ones_still_count():
    shares = counted([10] * 300 + [30] * 30)
    assert shares[28:33].sum() > 2 * 30 / 330
    assert 0.5 < shares[8:13].sum() < 0.9


@given(SEEN, SEEN)
def test_hazards_lie_between_zero_and_one(bursts, gaps):
    for chances in hazards(counted(bursts), counted(gaps)):
        assert chances.shape == (MOST,)
        assert ((chances >= 0) & (chances <= 1)).all()


@given(st.integers(0, MOST - 2), st.integers(1, MOST - 1))
def test_a_constant_length_is_certain_at_its_tick_and_impossible_before(burst, more):
    gap = min(burst + more, MOST - 1)
    ending, beginning = hazards(only(burst, MOST), only(gap, MOST))
    assert ending[burst] == pytest.approx(1.0)
    assert not ending[:burst].any()
    assert beginning[gap] == pytest.approx(1.0)
    assert not beginning[:gap].any()


def test_the_hazard_of_an_end_counts_only_bursts_that_last():
    shares = np.zeros(MOST)
    shares[[3, 7]] = 0.5
    ending, _ = hazards(shares, np.zeros(MOST))
    assert ending[3] == pytest.approx(0.5)
    assert ending[7] == pytest.approx(1.0)


def test_the_hazard_of_a_start_counts_only_finished_bursts():
    bursts, gaps = np.zeros(MOST), np.zeros(MOST)
    bursts[5], gaps[[10, 20]] = 1.0, (0.25, 0.25)  # the other half comes beyond the clock
    _, beginning = hazards(bursts, gaps)
    assert beginning[10] == pytest.approx(0.25)
    assert beginning[20] == pytest.approx(1 / 3)
    bursts[[5, 15]] = 0.5
    _, beginning = hazards(bursts, gaps)
    assert beginning[10] == pytest.approx(0.5)  # half of the bursts last still
