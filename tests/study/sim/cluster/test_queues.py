import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import UsageError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.policies.infless.fleet import FrontQueue, Instance
from serfer_bench.study.policies.infless.options import Option
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.policies.infless.servers import Placement
from serfer_bench.study.sim.cluster.queues import Counters, FrontBuffer, Server, advance, offer
from serfer_bench.study.sim.cluster.run import divided, tick_counts, ticks_of, times_within


def rng():
    return np.random.default_rng(1)


def trace(*rates, row_s=10.0):
    return Trace("rows", np.full(len(rates), row_s), np.array(rates, dtype=float))


def test_counts_are_those_of_the_load_and_ticks_cover_the_longest():
    assert tick_counts(trace(2.0, 0.0, 5.0), 5.0, 6, rng()).tolist() == [10, 10, 0, 0, 25, 25]
    broken = tick_counts(trace(*[0.05] * 2000), 10.0, 2000, rng())
    assert set(broken.tolist()) == {0, 1}
    assert broken.sum() == pytest.approx(1000, abs=100)
    assert ticks_of([trace(1.0), trace(1.0, 1.0)], 6.0) == 4
    with pytest.raises(UsageError, match="more than 0"):
        ticks_of([trace(1.0)], 0.0)
    with pytest.raises(UsageError, match="longer one"):
        ticks_of([trace(1.0, row_s=1e9)], 1.0)


@given(rates=st.lists(st.floats(0, 100), min_size=1, max_size=30), count=st.integers(0, 300), seed=st.integers(0, 99))
def test_every_request_goes_to_one_instance_as_rates_have_it(rates, count, seed):
    chance = np.random.default_rng(seed)
    times = times_within(count, 5.0, 2.0, chance)
    parts = dict(divided(times, rates, chance))
    if sum(rates) <= 0:
        assert parts == {}
        return
    assert sorted(time for part in parts.values() for time in part) == times.tolist()
    for number, rate in enumerate(rates):
        part = parts.get(number, [])
        assert part == sorted(part)
        assert abs(len(part) - count * rate / sum(rates)) < 1 + 1e-6


def test_an_instance_gets_every_so_manyth_request():
    times = np.arange(400.0)
    for part in dict(divided(times, [1.0, 1.0, 2.0], rng())).values():
        gaps = np.diff(part)
        assert gaps.max() <= 2 * np.median(gaps)


SLO_S = 0.2


def server(batch=4, seconds=0.05, free_s=0.0, number=1):
    option = Option(Configuration(batch, 1, 0), seconds, 28.0, 80.0, 1.0)
    return Server(Instance(number, 0, option, Placement(0, None, 1, 0)), free_s, lambda _: seconds, 1.0)


def served(arrivals, one, timeout_s=0.15):
    counters = Counters(SLO_S, requests=len(arrivals))
    offer(one, arrivals, timeout_s, counters)
    advance(one, float("inf"), timeout_s, counters)
    return counters


def test_batches_start_full_or_in_time_and_requests_are_dropped_or_late_beside_a_busy_or_cold_instance():
    counters = served([0.0, 0.01, 0.02, 0.03], one := server())
    assert counters.batches == {4: 4}
    assert one.free_s == pytest.approx(0.08)
    assert counters.wait_s == pytest.approx(0.03 + 0.02 + 0.01)
    counters = served([0.0, 0.1], one := server())
    assert (one.free_s, counters.met, counters.late) == (pytest.approx(0.2), 2, 0)
    counters = served([0.0] * 4 + [0.01] * 6, server(seconds=0.1))
    assert (counters.met, counters.dropped) == (4 + 4, 2)  # figure 6a
    counters = served([0.0], server(free_s=2.0))
    assert (counters.met, counters.late) == (0, 1)


ARRIVALS = st.lists(st.floats(0, 0.3), max_size=60).map(lambda gaps: np.cumsum(gaps).tolist())


@given(arrivals=ARRIVALS, batch=st.integers(1, 8), seconds=st.floats(0.001, 0.3), free_s=st.floats(0, 1))
def test_each_request_is_met_late_or_dropped_once(arrivals, batch, seconds, free_s):
    counters = served(arrivals, server(batch, seconds, free_s))
    assert counters.met + counters.late + counters.dropped == len(arrivals)
    assert sum(counters.latencies) == sum(counters.batches.values()) == counters.met + counters.late
    assert all(1 <= size <= batch for size in counters.batches)


@given(rate=st.floats(27, 79.9), count=st.integers(1, 200))
def test_even_arrivals_within_the_bounds_keep_the_slo_without_drops(rate, count):
    """Equation 1: [26.7, 80] requests a second at 50 ms, batches of 4, and 200 ms."""
    counters = served([at / rate for at in range(count)], server())
    assert (counters.met, counters.late, counters.dropped) == (count, 0, 0)


@given(arrivals=ARRIVALS, batch=st.integers(1, 8), count=st.integers(0, 3))
def test_a_buffer_in_front_gives_each_request_one_end(arrivals, batch, count):
    servers = [server(batch, 0.15, number=number) for number in range(count)]
    buffer, front, counters = FrontBuffer(), FrontQueue(batch, 0.05), Counters(SLO_S, requests=len(arrivals))
    half = len(arrivals) // 2
    buffer.offer(arrivals[:half], front, servers, counters)
    buffer.offer(arrivals[half:], front, servers, counters)
    buffer.advance(float("inf"), front, servers, counters)
    assert buffer.pending == []
    assert counters.met + counters.late + counters.dropped == len(arrivals)
    assert count or counters.dropped == len(arrivals)


def test_a_buffer_sends_a_batch_to_the_instance_that_is_free_first():
    servers = [server(free_s=1.0, number=1), server(free_s=0.5, number=2)]
    counters = Counters(SLO_S, requests=4)
    FrontBuffer().offer([0.1, 0.2, 0.3, 0.4], FrontQueue(4, 9.0), servers, counters)
    assert [one.free_s for one in servers] == [1.0, pytest.approx(0.55)]


def test_quantiles_are_multiples_of_the_slo():
    counters = Counters(SLO_S)
    assert counters.quantile(0.5) is None
    for latency in (0.05, 0.1, 0.15, 0.3):
        counters.answer([0.0], 0.0, latency)
    assert counters.quantile(0.5) == pytest.approx(0.5, abs=0.02)
    assert counters.quantile(1.0) == pytest.approx(1.5, abs=0.02)
