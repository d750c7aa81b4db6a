"""Utilisation over a sliding window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.dispatch import BusyWindow


def test_busy_times_count_within_the_window_alone():
    window = BusyWindow(0.0, 10.0)
    assert window.share(0.0) == 0.0
    window.add(1.0, 2.0)
    assert window.share(2.0) == pytest.approx(0.5)  # it has been open for two seconds
    window.add(12.0, 14.0)
    assert window.share(14.0) == pytest.approx(0.2)
    assert window.share(23.0) == pytest.approx(0.1)
    assert window.share(40.0) == 0.0


def test_what_runs_counts_before_it_ends():
    window = BusyWindow(0.0, 10.0)
    assert window.share(20.0, running_since=15.0) == pytest.approx(0.5)
    assert window.share(99.0, running_since=15.0) == 1.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=30), st.floats(0, 30))
def test_the_share_equals_what_adding_up_all_times_gives(steps, later):
    window, now, spans = BusyWindow(0.0, 10.0), 0.0, []
    for idle, busy in steps:
        began, now = now + idle, now + idle + busy
        spans.append((began, now))
        window.add(began, now)
    now += later
    begin = max(now - 10.0, 0.0)
    busy_s = sum(max(0.0, min(ended, now) - max(began, begin)) for began, ended in spans)
    assert window.share(now) == pytest.approx(busy_s / (now - begin) if now > begin else 0.0, abs=1e-6)
