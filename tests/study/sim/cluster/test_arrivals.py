import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import UsageError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.sim.cluster.arrivals import divided, tick_counts, ticks_of, times_within


def rng():
    return np.random.default_rng(1)


def trace(*rates, row_s=10.0):
    return Trace("rows", np.full(len(rates), row_s), np.array(rates, dtype=float))


def test_counts_are_those_of_the_load():
    counts = tick_counts(trace(2.0, 0.0, 5.0), 5.0, 6, rng())
    assert counts.tolist() == [10, 10, 0, 0, 25, 25]
    broken = tick_counts(trace(*[0.05] * 2000), 10.0, 2000, rng())
    assert set(broken.tolist()) == {0, 1}
    assert broken.sum() == pytest.approx(1000, abs=100)


def test_ticks_cover_the_longest_load():
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
