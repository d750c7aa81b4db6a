"""Generated loads: the same text gives the same load, of the kind that its name states."""

import numpy as np
import pytest

from serfer.core.errors import UsageError
from serfer_bench.study.loads.generators import GENERATORS, describe_generators, generate, is_generator
from serfer_bench.study.loads.scaling import without_zeros
from tests.cost.loads.test_trace import trace


@pytest.mark.parametrize(("name", "kind"), GENERATORS.items())
def test_the_same_seed_gives_the_same_load_and_another_one_another(name, kind):
    one, same, other = (generate(f"{name}:seed={seed}") for seed in (5, 5, 2))
    assert np.array_equal(one.rates, same.rates)
    assert np.all(one.rates >= 0)
    assert one.seconds == pytest.approx(kind.defaults["hours"] * 3600)
    assert not kind.noisy or not np.array_equal(one.rates, other.rates)


def test_poisson_has_its_rate_and_spread_and_mmpp_alternates_between_its_rates():
    load = generate("poisson:rate=40,hours=10")
    assert load.mean == pytest.approx(40, rel=0.02)
    assert load.rates.var() == pytest.approx(40, rel=0.05)
    load = generate("mmpp:low=10,high=1000,low_s=300,high_s=100,hours=200")
    high = load.rates > 500
    assert high.mean() == pytest.approx(0.25, abs=0.04)
    assert np.flatnonzero(np.diff(high)).size == pytest.approx(200 * 3600 / 200, rel=0.2)
    high = generate("mmpp:low=0,high=1000,low_s=0.001,high_s=0.001,hours=40").rates > 500
    assert np.array_equal(high, np.arange(high.size) % 2 == 1)


def test_daily_loads_have_their_peak_and_trough_and_crowds_reach_theirs():
    load = generate("diurnal:mean=100,swing=0.5,peak_hour=12,hours=24")
    hours = load.rates.reshape(24, 60).mean(axis=1)
    assert 11 <= hours.argmax() <= 12
    assert (hours.max(), hours.min()) == (pytest.approx(150, rel=0.05), pytest.approx(50, rel=0.08))
    load = generate("flash:base=10,peak=1000,crowds=2,rise_s=60,fade_s=60,hours=10")
    assert load.peak > 800
    assert np.median(load.rates) == pytest.approx(10, abs=1)
    load = generate("bursty-days:mean=100,swing=0.5,peak_hour=12,factor=3")
    hours = load.rates.reshape(14, 24, 60).mean(axis=(0, 2))
    assert 8 <= hours.argmax() <= 16
    steps = load.rates[1:] / np.maximum(load.rates[:-1], 1)
    assert (steps > 5).sum() > 100
    assert (steps < 1 / 5).sum() > 100


def test_bursts_sporadic_and_periodic_queries_keep_their_intervals():
    load = generate("bursts:queries=8,every_s=150,hours=1")
    assert load.queries == 8 * 24
    assert np.flatnonzero(load.rates).tolist() == [150 * number for number in range(24)]
    load = generate("sporadic:gap_s=600,spread=1,row_s=1,hours=1000")
    gaps = np.diff(np.flatnonzero(load.rates))
    assert np.median(gaps) == pytest.approx(600, rel=0.1)
    assert np.log(gaps).std() == pytest.approx(1, rel=0.1)
    load = generate("periodic:queries=3,every_s=1800,jitter_s=20,row_s=1")
    come = np.flatnonzero(load.rates)
    late = come - 1800 * np.arange(1, come.size + 1)
    assert set(load.rates[come]) == {3}
    assert late.std() == pytest.approx(20, rel=0.15)
    assert abs(late.mean()) < 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "no generator 'nothing'"),
        ("poisson:speed=1", "no parameter 'speed'"),
        ("poisson:rate=fast", "rate is a number"),
        ("poisson:rate=", "rate is a number"),
        ("poisson:rate=nan", "rate is 0 to"),
        ("poisson:hours=0", "hours is 0.001 to"),
        ("poisson:hours=1e9", "rows"),
        ("diurnal:swing=2", "swing is 0 to 1"),
        ("flash:crowds=1e6", "crowds is 0 to"),
    ],
)
def test_wrong_specifications_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        generate(text)


def test_the_help_lists_every_generator_with_a_valid_example():
    lines = describe_generators().splitlines()
    assert [line.partition(":")[0] for line in lines] == [*GENERATORS]
    assert all(generate(line.partition("  ")[0]).queries > 0 for line in lines)
    assert is_generator("mmpp:seed=1")
    assert not is_generator("mmpp.csv")


def test_long_idle_periods_are_removed_and_short_ones_kept():
    assert without_zeros(trace([60] * 7, [1, 0, 2, 0, 0, 0, 3]), 180).rates.tolist() == [1, 0, 2, 3]
    with pytest.raises(UsageError, match="no queries at all"):
        without_zeros(trace([60], [0]), 60)
