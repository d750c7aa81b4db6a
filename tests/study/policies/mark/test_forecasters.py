"""Forecasts of a load's peaks, forecasters by name, MArk's LSTM, and its settings in the paper's letters."""

import io
import re
from dataclasses import fields
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.core.errors import InputError, UsageError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.forecasting.errors import errors_of, peaks_of
from serfer_bench.study.forecasting.lstm_training import LstmOptions, train_lstm
from serfer_bench.study.policies.mark.forecaster import checked, make_forecaster
from serfer_bench.study.policies.mark.lstm import LstmForecaster, LstmWeights, mean_of, read_lstm, relative
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.peaks import PeakSampler
from serfer_bench.study.policies.mark.policy import Mark, MarkSpot
from serfer_bench.study.policies.mark.seasonal import DAY, SeasonalSmoothing
from tests.bench.running import rows
from tests.control.worlds import scenario, seen


def taught(forecaster, peaks):
    for peak in peaks:
        forecaster.observe(float(peak))
    return forecaster


def test_a_constant_load_is_forecast_exactly_and_no_rate_is_negative():
    assert taught(SeasonalSmoothing(), [7.0] * 100).forecast(60) == pytest.approx(7.0)
    assert SeasonalSmoothing().forecast(3).tolist() == [0.0] * 3
    falling = taught(SeasonalSmoothing(), np.repeat([100.0, 10.0], DAY // 2))
    assert taught(falling, [0.0] * 700).forecast(60).min() >= 0.0
    assert checked([-1.0, 2], 2).tolist() == [0.0, 2.0]


def test_a_day_that_repeats_is_forecast_by_hours_from_its_second_time_on():
    hours = 100 + 50 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    forecaster = taught(SeasonalSmoothing(), np.repeat(hours, 60))
    for hour in range(24):
        assert forecaster.forecast(60) == pytest.approx(hours[hour], abs=1e-6)
        assert forecaster.forecast(90)[60:] == pytest.approx(hours[(hour + 1) % 24], abs=1e-6)
        taught(forecaster, [hours[hour]] * 60)


def test_a_spike_of_one_day_is_not_expected_on_the_next():
    day = np.full(DAY, 10.0)
    day[700:710] = 100.0
    forecaster = taught(taught(SeasonalSmoothing(), day), [10.0] * 680)
    assert forecaster.forecast(60).max() < 26.0  # a sixth of an hour's ten minutes of it


def test_a_higher_level_is_followed_within_minutes():
    day = np.repeat(100 + 50 * np.sin(np.arange(24) / 24 * 2 * np.pi), 60)
    forecaster = taught(taught(SeasonalSmoothing(), day), day[:3] + 40)
    assert forecaster.forecast(50) == pytest.approx(day[3:53] + 40, rel=0.02)
    assert taught(SeasonalSmoothing(), [*range(200)]).forecast(1)[0] == pytest.approx(199, abs=1)


def test_a_unit_has_the_highest_mean_of_its_own_samples():
    sampler = PeakSampler(60.0, 5.0)
    assert [sampler.add(1.0, 50.0 if second == 7 else 0.0) for second in range(60)] == [[]] * 59 + [[10.0]]
    assert sampler.add(59.0, 3.0) == []
    assert sampler.add(1.0, 9.0) == [9.0]  # the last sample is short
    assert [sampler.add(10.0, rate) for rate in (1.0, 2.0, 9.0, 4.0, 5.0, 3.0)][-1] == [9.0]
    assert sampler.add(600.0, 4.0) == [4.0] * 10
    assert len(sampler.add(1e12, 4.0)) == 2 * DAY


class Flat:
    """A forecaster of the user's own, by which nothing changes."""

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


@pytest.mark.parametrize(
    "name", ["nowhere:Flat", "serfer.control.scenario:S_PER_HOUR", "serfer.control.router:Router", "none.npz"]
)
def test_what_is_no_forecaster_is_refused_by_its_name(name):
    with pytest.raises((UsageError, InputError), match=name):
        make_forecaster(name)


@pytest.mark.parametrize("forecast", [None, "soon", [1.0], [1.0, np.nan], [[1.0, 2.0]], [1.0, np.inf]])
def test_a_forecast_that_is_no_array_of_rates_is_refused(forecast):
    with pytest.raises(InputError, match="forecast"):
        checked(forecast, 2)


SMALL = LstmOptions(window=20, horizon=10, hidden=8, epochs=6, batch=64, rate=0.02)


def weights(window=20, hidden=4, horizon=10, seed=0):
    rng = np.random.default_rng(seed)
    made = {"taken": (4 * hidden,), "recurrent": (4 * hidden, hidden), "bias": (4 * hidden,)}
    made |= {"head": (horizon, hidden), "head_bias": (horizon,)}
    return LstmWeights(window, **{name: rng.normal(0, 0.5, shape) for name, shape in made.items()})


def wave(minutes):
    return 100 + 60 * np.sin(np.arange(minutes) / 30 * 2 * np.pi)


def test_numpy_forecasts_what_torch_does():
    torch = pytest.importorskip("torch")
    made, peaks = weights(), np.random.default_rng(1).uniform(0, 50, 20)
    cell, mean = torch.nn.LSTM(1, 4, batch_first=True).double(), mean_of(peaks)
    with torch.no_grad():
        cell.weight_ih_l0.copy_(torch.from_numpy(made.taken[:, np.newaxis]))
        cell.weight_hh_l0.copy_(torch.from_numpy(made.recurrent))
        cell.bias_ih_l0.copy_(torch.from_numpy(made.bias))
        cell.bias_hh_l0.zero_()
        x = relative(peaks, mean)
        hidden = cell(torch.from_numpy(x)[None, :, None])[0][0, -1].numpy()
    expected = np.clip(np.exp(x[-1] + made.head @ hidden + made.head_bias) - 0.01, 0, None) * mean
    assert made.forecast(peaks) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 90), st.floats(0.01, 100))
def test_forecasts_are_finite_not_negative_and_scale_with_the_load(peaks, units, factor):
    one, other = LstmForecaster(weights()), LstmForecaster(weights())
    for peak in peaks:
        one.observe(peak)
        other.observe(peak * factor)
    found = one.forecast(units)
    assert found.shape == (units,)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    if not peaks:
        assert not found.any()
    elif min(peaks) > 1e-3:
        assert other.forecast(units) == pytest.approx(found * factor, rel=1e-6)


def test_training_learns_a_wave_and_is_repeatable():
    peaks = wave(1500)
    made = train_lstm(peaks[:1000], SMALL)
    again = train_lstm(peaks[:1000], SMALL)
    assert np.array_equal(made.recurrent, again.recurrent)
    learnt, last = (errors_of(one, peaks[:1000], peaks[1000:], 10) for one in (LstmForecaster(made), Flat()))
    assert learnt.all_units < 0.4 * last.all_units
    with pytest.raises(InputError, match="100 minutes is too short to train on: give 116 at least"):
        train_lstm(wave(100), SMALL)
    train_lstm(wave(116), LstmOptions(**{**vars(SMALL), "epochs": 1}))


def test_errors_are_shares_of_the_mean_peak_and_peaks_the_highest_five_seconds_of_each_minute():
    rising = np.arange(1.0, 41.0)
    errors = errors_of(Flat(), rising[:10], rising[10:], 10)
    mean = rising[10:].mean()
    assert (errors.next_unit, errors.fifth_unit) == (pytest.approx(1 / mean), pytest.approx(5 / mean))
    assert errors.all_units == pytest.approx(5.5 / mean)
    with pytest.raises(InputError, match="it should have 20"):
        errors_of(Flat(), rising[:10], rising[10:29], 10)
    rates = np.full(120, 10.0)
    rates[65:70] = 50.0
    assert peaks_of(Trace("a trace", np.ones(120), rates)).tolist() == [10.0, 50.0]


def test_a_network_is_read_back_and_used_by_name(tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(weights().to_bytes())
    assert np.array_equal(read_lstm(file).head, weights().head)
    forecaster = make_forecaster(str(file))
    forecaster.observe(7.0)
    assert forecaster.forecast(60).shape == (60,)
    for name in ("mark", "mark-spot"):
        policy = make_policy(f"{name}:forecaster={file}", scenario())
        assert policy.observe(seen(60.0, 15.0)).total >= 1
        assert policy.name == f"{name}:forecaster={file}"
    with pytest.raises(UsageError, match="serverless"):
        make_policy(f"serverless:forecaster={file}", scenario())


def saved(save=np.savez, **changes):
    made, file = weights(), io.BytesIO()
    arrays = {name: getattr(made, name) for name in ("taken", "recurrent", "bias", "head", "head_bias")}
    arrays = {"version": np.asarray(1), "window": np.asarray(20), **arrays, **changes}
    save(file, **{name: one for name, one in arrays.items() if one is not None})
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 torn", "cannot be read"),
        (saved()[:-30], "cannot be read"),
        (saved(head=None), "should have the arrays"),
        (saved(more=np.zeros(2)), "should have the arrays"),
        (saved(version=np.asarray(2)), "it is of version 2, this SerFer reads 1"),
        (saved(version=np.asarray(1.0)), "whole numbers"),
        (saved(window=np.asarray(0)), "1 to 512"),
        (saved(head=np.zeros((10, 5))), "head has the shape"),
        (saved(bias=np.full(16, np.nan)), "bias has numbers that are not finite"),
        (saved(bias=np.array(["x"] * 16)), "floats"),
        (saved(head=np.array([[{}] * 4] * 10, dtype=object)), "cannot be read"),
        (saved(np.savez_compressed, head=np.zeros((10**6, 4))), "should have the arrays"),
        (b"x" * (4 * 1024 * 1024 + 1), "more than 4,194,304 bytes"),
    ],
)
def test_what_is_not_a_trained_network_is_refused_by_name(tmp_path, data, message):
    file = tmp_path / "foreign.npz"
    file.write_bytes(data)
    with pytest.raises(InputError, match=message) as raised:
        read_lstm(file)
    assert "foreign.npz" in str(raised.value)


def test_the_command_trains_and_compares(tmp_path):
    pytest.importorskip("torch")
    load, file = tmp_path / "load.csv", tmp_path / "lstm.npz"
    load.write_text("minute,requests\n" + "".join(f"{n},{int(600 * rate)}\n" for n, rate in enumerate(wave(1400))))
    [found] = rows("study", "train-forecaster", load, "--out", file, "--epochs", 2)
    assert (found["minutes"], found["judged"]) == (700, 700)
    assert found["errors"].keys() == {"seasonal", "lstm"}
    assert read_lstm(Path(found["file"])).horizon == 60
    with pytest.raises(UsageError):
        rows("study", "train-forecaster", load, "--out", tmp_path / "lstm.pt")


def options_of(name):
    return make_policy(name, scenario()).guarded._options


def test_settings_are_named_by_the_letters_of_the_paper():
    text = "sl_min=0.99,m=100,l=2,t=gpu,p_u=30,p_w=90,p_s=2.5,tau=10,cool_down=60,w_batch=0,forecaster=seasonal"
    known = MarkOptions("seasonal", 0.99, 100, 2, "gpu", 30.0, 90, 2.5, 10, 60.0, 0.0)
    assert options_of(f"mark:{text}") == known
    written = [field for field in fields(MarkOptions) if field.metadata.get("written", True)]
    assert {part.partition("=")[0] for part in text.split(",")} == {
        field.metadata.get("key", field.name) for field in written
    }
    assert {field.name for field in fields(MarkOptions)} - {field.name for field in written} == {"all_types", "spot"}


def test_what_is_not_given_stays_as_it_is_by_default_and_the_name_has_the_settings():
    assert options_of("mark:") == options_of("mark") == Mark.options
    spot = options_of("mark-spot:m=100")
    assert (spot.spot, spot.all_types, spot.monitor_queries, spot.slo_met) == (True, True, 100, 0.98)
    assert isinstance(make_policy("mark-spot:m=100", scenario()).guarded, MarkSpot)
    assert make_policy("mark:m=100", scenario()).name == "mark:m=100"


@given(m=st.integers(1, 10_000_000), met=st.floats(0, 1), units=st.integers(1, 512))
def test_numbers_are_read_as_they_are_written(m, met, units):
    found = options_of(f"mark:m={m},sl_min={met!r},p_w={units}")
    assert (found.monitor_queries, found.slo_met, found.window) == (m, met, units)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slmin=1", "mark has no parameter 'slmin': it has forecaster, sl_min, m, l, t, p_u, p_w, p_s, tau, cool_down"),
        ("lstm.npz", "mark has no parameter 'lstm.npz'"),
        ("spot=true", "mark has no parameter 'spot'"),
        ("m=1,m=2", "mark: m is given twice"),
        ("m=many", "mark.m should be a whole number, not str"),
        ("m=0.5", "mark.m should be a whole number, not float"),
        ("sl_min=98", "mark.sl_min should be 0 to 1, not 98"),
        ("sl_min=nan", "mark.sl_min should be 0 to 1, not nan"),
        ("m=0", "mark.m should be 1 to 1e+07, not 0"),
        ("p_s=61", "samples of p_s 61 s do not fit a unit of p_u 60 s"),
        ("p_w=5,tau=6", "tau 6 is beyond the forecast of p_w 5 units"),
        ("forecaster=best", "there is no forecaster 'best'"),
        ("forecaster=lstm.npz,p_u=30", "a trained LSTM forecasts minutes: p_u is 60 with it"),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        make_policy(f"mark:{text}", scenario())


def test_a_day_of_the_seasonal_forecast_is_a_day_whatever_a_unit_is():
    for unit_s in (60.0, 300.0):
        forecaster = make_forecaster("seasonal", unit_s)
        for unit in range(round(2 * 86_400 / unit_s)):
            hour = unit * unit_s // 3600 % 24
            forecaster.observe(100.0 if hour == 9 else 10.0)
        night = forecaster.forecast(round(8 * 3600 / unit_s))
        assert np.allclose(night, 10.0, atol=1.0)
        assert forecaster.forecast(round(9.5 * 3600 / unit_s))[-1] == pytest.approx(100.0, abs=5.0)
