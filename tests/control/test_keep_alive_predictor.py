"""Predictions after several bursts: boot in time, keep on while it pays, and stay off otherwise."""

import random

from serfer.control.policies.windows_guess import BOOT_TICKS, KeepAlivePredictor

FULL, NOTHING = 13.0, 0.0
CLOCK = 480  # ticks up to which lengths are distinguished


def periodic(bursts, burst=20, period=100, *, units=FULL, before=30):
    """Return a load by ticks: so many bursts, which begin `period` ticks apart, and the quiet after the last one."""
    return [NOTHING] * before + ([units] * burst + [NOTHING] * (period - burst)) * bursts


def predictions(load, windows=None):
    """Return what windows want after each tick of a load."""
    windows = windows or KeepAlivePredictor()
    on = []
    for units in load:
        windows.tick(units)
        on.append(windows.on)
    return on


def test_predictions_begin_after_three_bursts():
    on = predictions(periodic(4))
    third_is_over = 30 + 2 * 100 + 20
    assert on[:third_is_over] == [None] * third_is_over
    assert None not in on[third_is_over + BOOT_TICKS :]


def test_an_instance_has_booted_just_before_a_burst_begins():
    windows = KeepAlivePredictor()
    predictions(periodic(10), windows)
    for _ in range(3):
        serves = []
        for units in periodic(1, before=0):
            windows.tick(units)
            serves.append(windows.serves)
        assert all(serves[:18])  # all through the burst, up to where it may end
        assert sum(serves[20:]) <= 8  # and hardly longer; then it serves again when the next one may begin
        assert serves[-1]


def test_a_burst_that_comes_a_tick_early_is_served_from_its_first_tick_on():
    windows = KeepAlivePredictor()
    predictions(periodic(10), windows)
    predictions(periodic(1, period=99, before=0), windows)
    assert windows.serves


def test_instances_are_off_in_long_gaps():
    windows = KeepAlivePredictor()
    predictions(periodic(10), windows)
    quiet = predictions(periodic(1, before=0), windows)[25:]
    assert quiet.count(True) <= BOOT_TICKS + 4
    assert quiet == sorted(quiet)  # off, and then on for good


def test_short_gaps_are_idled_through():
    windows = KeepAlivePredictor()
    load = periodic(30, burst=10, period=15)
    predictions(load, windows)
    assert all(predictions(load[30:], windows))


def test_bursts_that_are_rare_and_short_start_nothing():
    draw, load = random.Random(1), []  # noqa: S311 - a load
    for _ in range(25):
        load += [3.0] * 2 + [NOTHING] * draw.randint(100, 470)
    windows = KeepAlivePredictor()
    predictions(load, windows)
    assert not any(predictions(load, windows))


def test_a_load_below_the_instances_price_is_not_a_burst():
    assert predictions([0.9] * 500 + [NOTHING] * 50 + [1.0] * 50) == [None] * 600


def test_one_quiet_tick_does_not_end_a_burst():
    holes = [NOTHING if tick % 5 == 4 else FULL for tick in range(20)]
    load = ([*holes, *[NOTHING] * 80]) * 8
    windows, whole = KeepAlivePredictor(), KeepAlivePredictor()
    predictions(load, windows)
    predictions(periodic(8, before=0), whole)
    assert windows._count == whole._count == 8


def test_beyond_the_clock_instances_are_on_exactly_during_bursts():
    windows = KeepAlivePredictor()
    predictions(periodic(6), windows)
    quiet = predictions([NOTHING] * (CLOCK + 200), windows)
    assert not any(quiet[CLOCK:])
    burst = predictions([FULL] * (CLOCK + 200), windows)
    assert all(burst[CLOCK:])
    assert windows.serves


def test_an_instance_serves_after_its_boot():
    windows = KeepAlivePredictor()
    predictions(periodic(6)[:-50], windows)  # off, in the middle of a gap
    assert not windows.on
    was_on = 0
    for units in periodic(4, before=40):
        windows.tick(units)
        was_on = was_on + 1 if windows.on else 0
        assert windows.serves == (was_on > BOOT_TICKS)


def test_a_changed_pattern_is_relearned():
    windows = KeepAlivePredictor()
    predictions(periodic(10, period=100), windows)
    predictions(periodic(25, period=60, before=0), windows)
    on = predictions(periodic(1, period=60, before=0), windows)
    assert on[-BOOT_TICKS:] == [True] * BOOT_TICKS
