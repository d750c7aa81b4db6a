"""One function's warm state over a load, against a step through every second."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.environments import PINGED_AFTER
from serfer.control.windows import IdlePeriod, Windows, window_policies
from serfer.cost.loads.trace import Trace
from serfer_bench.study.loads.generators import generate
from serfer_bench.study.sim.warm_state import instances, pings, warm_state

LATENCY_MS = 1000.0


def load(counts, row_s=60.0):
    """Return a load whose rows use so many instances at once: x + 2 sqrt(x) is just below the count."""
    rates = (np.sqrt(np.array(counts) + 1.0) - 1.0) ** 2 * (1 - 1e-9)
    return Trace("load", np.full(len(counts), row_s), rates)


@given(st.integers(0, 100))
def test_a_row_uses_the_mean_in_flight_and_two_standard_deviations(count):
    assert instances(load([count]), LATENCY_MS).tolist() == [count]


def by_the_second(counts, keepalive_s, row_s=60):
    """Return cold starts and idle seconds of a fixed window, instance by instance and second by second."""
    cold = idle = 0
    for level in range(max(counts, default=0)):
        since = math.inf
        for count in counts:
            busy = count > level
            cold += busy and since > keepalive_s
            if busy:
                since = 0
                continue
            for _ in range(row_s):
                idle += since < keepalive_s
                since += 1
    return cold, idle


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.sampled_from([0, 30, 60, 90, 300]))
def test_cold_starts_and_idle_time_are_those_of_every_second(counts, keepalive_s):
    found = warm_state(load(counts), window_policies(str(keepalive_s)), LATENCY_MS)
    assert (found.cold, found.idle_s) == by_the_second(counts, keepalive_s)
    assert found.busy_s == 60 * sum(counts)


@pytest.mark.parametrize("name", ["lsth", "hybrid"])
def test_a_periodic_load_is_prewarmed(name):
    periodic = generate("periodic:every_s=3600,jitter_s=30")
    learnt = warm_state(periodic, window_policies(name), LATENCY_MS)
    kept = warm_state(periodic, window_policies("3600"), LATENCY_MS)
    assert learnt.cold <= 5
    assert learnt.loads > 0.95 * learnt.uses
    assert learnt.idle_s < 0.3 * kept.idle_s


KEPT_S = 300.0
SECONDS = st.integers(0, 5000).map(float)  # whole ones, which add up without rounding
WINDOWS = st.builds(Windows, SECONDS, SECONDS)


def kept_by_pings(idle_s, windows):
    """Return pings and the last use, going from one to the next."""
    last, sent = 0.0, 0
    while True:
        due = max(last + PINGED_AFTER * KEPT_S, windows.prewarm_s if not sent else 0.0)
        if due >= min(idle_s, windows.until_s):
            return sent, last
        last, sent = due, sent + 1


@given(SECONDS, WINDOWS)
def test_pings_keep_an_environment_between_its_windows(idle_s, windows):
    count, last = pings(IdlePeriod(1000.0, 1000.0 + idle_s, windows), KEPT_S)
    expected = kept_by_pings(idle_s, windows)
    assert (count, last) == (expected[0], pytest.approx(expected[1]))


def test_on_lambda_a_query_soon_after_another_starts_warm_without_pings():
    every_four_minutes = load([1, 0, 0, 0] * 10)
    found = warm_state(every_four_minutes, window_policies("0"), LATENCY_MS)
    assert (found.cold, found.cold_on_lambda, found.pings) == (10, 1, 0)
    every_hour = warm_state(load(([1] + [0] * 59) * 10), window_policies("3600"), LATENCY_MS)
    assert (every_hour.cold_on_lambda, every_hour.pings) == (1, 10 * 14)
