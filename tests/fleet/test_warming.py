"""Environments are pinged where fewer are there than a plan wants, as far as the driver knows."""

from hypothesis import given
from hypothesis import strategies as st

from serfer.fleet.warming import Warming
from tests.fleet.fakes import scenario

TARGET = scenario().serverless  # keeps environments for 600 s, 100 at once


class Lambda:
    """Environments as Lambda keeps them: one that was used last is used first, one that was idle too long is gone."""

    def __init__(self):
        self.used = []  # when, the longest ago first

    def there(self, now):
        self.used = [when for when in self.used if when + TARGET.keep_alive_s > now]
        return len(self.used)

    def hold(self, now, count):
        """Have so many requests at once use environments, new ones where they are lacking."""
        self.there(now)
        self.used = self.used[: max(0, len(self.used) - count)] + [now] * count


@given(seconds=st.lists(st.tuples(st.floats(1.0, 300.0), st.integers(0, 30), st.integers(0, 120)), max_size=40))
def test_as_many_are_there_as_are_wanted_within_ten_seconds(seconds):
    now, functions, warming = 0.0, Lambda(), Warming(TARGET)
    for passed, in_flight, wanted in seconds:
        for wait_s in (passed, 10.0):
            now += wait_s
            pings = warming.due(now, in_flight, wanted)
            assert 0 <= pings <= TARGET.concurrency - in_flight
            functions.hold(now, in_flight + pings)
        assert functions.there(now) >= min(wanted, TARGET.concurrency)


def test_queries_that_keep_enough_environments_leave_nothing_to_ping():
    warming = Warming(TARGET)
    assert warming.due(0.0, 9, 9) == 0
    assert warming.due(300.0, 2, 9) == 0
    assert warming.due(601.0, 2, 9) == 7


def test_pings_that_failed_are_due_in_a_minute():
    warming = Warming(TARGET)
    assert warming.due(0.0, 0, 5) == 5
    warming.failed(1.0)
    assert [warming.due(now, 0, 5) for now in (20.0, 60.0, 61.0, 62.0)] == [0, 0, 5, 0]
