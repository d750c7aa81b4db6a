"""Environments are used again from the last one on, and dropped after their time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from serfer.control.environments import Environments, environments
from tests.control.worlds import scenario

TARGET = replace(scenario().serverless, keep_alive_s=600.0, concurrency=50)
EVENTS = st.lists(st.tuples(st.floats(0.0, 700.0), st.floats(0.0, 1000.0), st.integers(0, 60)), max_size=30)


@given(events=EVENTS)
def test_pings_are_those_of_a_list_of_environments(events):
    now, used, kept = 0.0, [], Environments(TARGET)  # when each was used, the longest ago first
    for seconds, qps, wanted in events:
        now += seconds
        count = environments(TARGET, qps)
        if count:
            used = [when for when in used if when + 600.0 > now]
            used = used[: max(0, len(used) - count)] + [now] * count
        kept.use(now, count)
        used = [when for when in used if when + 600.0 > now]
        missing = max(0, min(wanted, 50) - len(used))
        used += [now] * missing
        assert kept.keep(now, wanted) == missing


def test_a_load_uses_its_queries_in_flight_and_two_deviations_as_far_as_the_account_allows():
    assert [environments(TARGET, qps) for qps in (-1.0, 0.0, 0.01, 50.0, 1e9)] == [0, 0, 1, 7, 50]
