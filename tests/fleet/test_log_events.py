import logging

import pytest

from serfer.core.errors import UnavailableError
from serfer.fleet.log_events import CHANGED_S, SAME_S, TroubleLog, Troubles
from tests.bugs import buggy
from tests.bugs import logged as bugs_in
from tests.support.hand_clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def troubles(clock):
    return TroubleLog("trouble", clock)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "serfer.fleet")
    return lambda: [(record.msg, record.serfer.get("message")) for record in caplog.records]


def test_what_lasts_is_logged_when_it_begins_and_rarely_after_that(clock, troubles, logged):
    for second in range(int(2 * SAME_S) + 1):
        clock.now = float(second)
        troubles.note("one", "away")
        troubles.note("two", "away")
    assert logged() == [("trouble", "away")] * 6  # each key by itself


def test_what_changes_is_logged_again_but_not_each_time(clock, troubles, logged):
    for second in range(int(CHANGED_S) + 1):
        clock.now = float(second)
        troubles.note("one", f"away {second}")
    assert logged() == [("trouble", "away 0"), ("trouble", f"away {CHANGED_S:.0f}")]


def test_an_end_is_logged_once_and_a_new_beginning_at_once(troubles, logged):
    troubles.over("one")
    troubles.note("one", "away")
    troubles.over("one")
    troubles.over("one")
    troubles.note("one", "away")
    assert logged() == [("trouble", "away"), ("trouble is over", None), ("trouble", "away")]


def test_what_a_loop_survives_is_counted_each_time_and_logged_in_one_line(clock, logged):
    troubles = Troubles("loop trouble", clock)
    for _ in range(3):
        with troubles.survived("store"):
            raise OSError("away\nwith details")
    with troubles.survived("store"):
        pass
    assert troubles == {"store": 3}
    assert logged() == [("loop trouble", "OSError: away"), ("loop trouble is over", None)]


@pytest.mark.parametrize(("error", "frames"), [(None, 1), (UnavailableError("away"), 0), (TimeoutError(), 0)])
def test_a_bug_that_a_loop_survives_is_logged_with_its_traceback_and_what_can_happen_is_not(
    clock, caplog, error, frames
):
    troubles = Troubles("loop trouble", clock)
    with troubles.survived("store"):
        if error is not None:
            raise error
        buggy()
    assert troubles == {"store": 1}
    assert (bugs_in(caplog.records), len(caplog.records)) == (frames, 1)
