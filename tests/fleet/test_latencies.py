import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.policy import LatencyWindow
from serfer.fleet.pool import Latencies, of_all

SLO_MS = 200.0


def measured(latencies):
    meter = Latencies(SLO_MS)
    for latency in latencies:
        meter.add(latency)
    return meter


def test_queries_past_the_objective_are_late():
    assert measured([SLO_MS, SLO_MS + 1, 10.0]).take() == LatencyWindow(3, 1, SLO_MS + 1)


def test_a_window_begins_where_the_last_one_ended():
    meter = measured([500.0])
    meter.take()
    assert meter.take() == LatencyWindow(0, 0, 0.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_the_99th_percentile_is_that_of_numpy(latencies):
    expected = np.percentile(latencies, 99, method="inverted_cdf")
    assert measured(latencies).take().p99_ms == expected


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), min_size=1, max_size=4))
def test_the_percentile_of_several_drivers_is_at_least_that_of_all_their_queries(drivers):
    together = of_all(measured(one).take() for one in drivers)
    alone = measured([latency for one in drivers for latency in one]).take()
    assert (together.answered, together.late) == (alone.answered, alone.late)
    assert together.p99_ms >= alone.p99_ms
