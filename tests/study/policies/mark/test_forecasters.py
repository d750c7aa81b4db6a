"""Forecasts of a load's peaks, and forecasters by name."""

from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.mark.forecaster import checked, make_forecaster
from serfer_bench.study.policies.mark.peaks import PeakSampler
from serfer_bench.study.policies.mark.seasonal import DAY, SeasonalSmoothing


def seen(forecaster, peaks):
    for peak in peaks:
        forecaster.observe(float(peak))
    return forecaster


def test_a_constant_load_is_forecast_exactly():
    assert seen(SeasonalSmoothing(), [7.0] * 100).forecast(60) == pytest.approx(7.0)
    assert SeasonalSmoothing().forecast(3).tolist() == [0.0] * 3


def test_a_day_that_repeats_is_forecast_by_hours_from_its_second_time_on():
    hours = 100 + 50 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    forecaster = seen(SeasonalSmoothing(), np.repeat(hours, 60))
    for hour in range(24):
        assert forecaster.forecast(60) == pytest.approx(hours[hour], abs=1e-6)
        assert forecaster.forecast(90)[60:] == pytest.approx(hours[(hour + 1) % 24], abs=1e-6)
        seen(forecaster, [hours[hour]] * 60)


def test_a_spike_of_one_day_is_not_expected_on_the_next():
    day = np.full(DAY, 10.0)
    day[700:710] = 100.0
    forecaster = seen(seen(SeasonalSmoothing(), day), [10.0] * 680)
    assert forecaster.forecast(60).max() < 26.0  # a sixth of an hour's ten minutes of it


def test_a_higher_level_is_followed_within_minutes():
    day = np.repeat(100 + 50 * np.sin(np.arange(24) / 24 * 2 * np.pi), 60)
    forecaster = seen(seen(SeasonalSmoothing(), day), day[:3] + 40)
    assert forecaster.forecast(50) == pytest.approx(day[3:53] + 40, rel=0.02)
    assert seen(SeasonalSmoothing(), [*range(200)]).forecast(1)[0] == pytest.approx(199, abs=1)


def test_no_rate_is_negative():
    falling = seen(SeasonalSmoothing(), np.repeat([100.0, 10.0], DAY // 2))
    assert seen(falling, [0.0] * 700).forecast(60).min() >= 0.0


def test_a_unit_has_the_highest_mean_of_its_samples():
    sampler = PeakSampler(60.0, 5.0)
    rates = [0.0] * 60
    rates[7] = 50.0  # a second of five
    assert [sampler.add(1.0, rate) for rate in rates][:-1] == [[]] * 59
    assert sampler.add(59.0, 3.0) == []
    assert sampler.add(1.0, 9.0) == [9.0]  # the last sample is short


def test_peaks_are_those_of_their_own_unit():
    sampler = PeakSampler(60.0, 5.0)
    assert [sampler.add(1.0, 50.0 if second == 7 else 0.0) for second in range(60)][-1] == [10.0]
    assert [sampler.add(10.0, rate) for rate in (1.0, 2.0, 9.0, 4.0, 5.0, 3.0)][-1] == [9.0]


def test_a_late_observation_is_as_many_units_as_it_lasts():
    sampler = PeakSampler(60.0, 5.0)
    assert sampler.add(600.0, 4.0) == [4.0] * 10
    assert len(sampler.add(1e12, 4.0)) == 2 * DAY


class Flat:
    """A forecaster of the user's own."""

    def observe(self, peak):
        self.peak = peak

    def forecast(self, units):
        return [self.peak] * units


def test_a_forecaster_is_built_in_plugged_in_or_a_class(monkeypatch):
    plugged = EntryPoints([EntryPoint("flat", f"{__name__}:Flat", "serfer.forecasters")])
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: plugged.select(group=group))
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Flat=Flat))
    assert isinstance(make_forecaster("seasonal"), SeasonalSmoothing)
    assert isinstance(make_forecaster("flat").guarded, Flat)
    assert isinstance(
        make_forecaster("serfer_bench.study.policies.mark.seasonal:SeasonalSmoothing").guarded, SeasonalSmoothing
    )
    with pytest.raises(UsageError, match=r"no forecaster 'best': there are seasonal, flat, FILE.npz, and MODULE:Class"):
        make_forecaster("best")


@pytest.mark.parametrize("name", ["nowhere:Flat", "serfer.control.scenario:S_PER_HOUR", "serfer.control.router:Router"])
def test_what_is_no_forecaster_is_refused(name):
    with pytest.raises(UsageError, match=name):
        make_forecaster(name)


@pytest.mark.parametrize("forecast", [None, "soon", [1.0], [1.0, np.nan], [[1.0, 2.0]], [1.0, np.inf]])
def test_a_forecast_that_is_no_array_of_rates_is_refused(forecast):
    with pytest.raises(InputError, match="forecast"):
        checked(forecast, 2)


def test_a_forecast_below_nothing_is_nothing():
    assert checked([-1.0, 2], 2).tolist() == [0.0, 2.0]
