"""MArk's LSTM: trained offline, kept as plain arrays, and the same forecasts by numpy as by torch."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.policies import make_policy
from serfer.core.errors import InputError, UsageError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.forecasting.errors import errors_of, peaks_of
from serfer_bench.study.forecasting.lstm_training import LstmOptions, train_lstm
from serfer_bench.study.policies.mark.forecaster import make_forecaster
from serfer_bench.study.policies.mark.lstm import LstmForecaster, LstmWeights, mean_of, read_lstm, relative
from tests.control.worlds import scenario, seen

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
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(1, 90), st.floats(0.01, 100))
def test_forecasts_are_finite_not_negative_and_scale_with_the_load(peaks, units, factor):
    one, other = LstmForecaster(weights()), LstmForecaster(weights())
    for peak in peaks:
        one.observe(peak)
        other.observe(peak * factor)
    found = one.forecast(units)
    assert found.shape == (units,)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    if min(peaks) > 1e-3:
        assert other.forecast(units) == pytest.approx(found * factor, rel=1e-6)


def test_a_forecaster_that_has_seen_nothing_forecasts_nothing():
    assert LstmForecaster(weights()).forecast(3).tolist() == [0.0] * 3


def test_training_learns_a_wave_and_is_repeatable():
    peaks = wave(1500)
    made = train_lstm(peaks[:1000], SMALL)
    again = train_lstm(peaks[:1000], SMALL)
    assert np.array_equal(made.recurrent, again.recurrent)
    learnt, last = (errors_of(one, peaks[:1000], peaks[1000:], 10) for one in (LstmForecaster(made), Last()))
    assert learnt.all_units < 0.4 * last.all_units


class Last:
    """Forecasts that nothing changes."""

    def observe(self, peak):
        self.peak = peak

    def forecast(self, units):
        return np.full(units, self.peak)


def test_errors_are_shares_of_the_mean_peak():
    rising = np.arange(1.0, 41.0)
    errors = errors_of(Last(), rising[:10], rising[10:], 10)
    mean = rising[10:].mean()
    assert (errors.next_unit, errors.fifth_unit) == (pytest.approx(1 / mean), pytest.approx(5 / mean))
    assert errors.all_units == pytest.approx(5.5 / mean)
    with pytest.raises(InputError, match="it should have 20"):
        errors_of(Last(), rising[:10], rising[10:29], 10)


def test_peaks_of_a_load_are_the_highest_five_seconds_of_each_minute():
    rates = np.full(120, 10.0)
    rates[65:70] = 50.0
    assert peaks_of(Trace("a trace", np.ones(120), rates)).tolist() == [10.0, 50.0]


def test_a_load_that_is_too_short_is_refused():
    with pytest.raises(InputError, match="100 minutes is too short to train on: give 116 at least"):
        train_lstm(wave(100), SMALL)
    train_lstm(wave(116), LstmOptions(**{**vars(SMALL), "epochs": 1}))


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


def saved(**changes):
    arrays = {"version": np.asarray(1), "window": np.asarray(20), **arrays_of(weights()), **changes}
    file = io.BytesIO()
    np.savez(file, **{name: one for name, one in arrays.items() if one is not None})
    return file.getvalue()


def arrays_of(made):
    return {name: getattr(made, name) for name in ("taken", "recurrent", "bias", "head", "head_bias")}


def bomb():
    file = io.BytesIO()
    np.savez_compressed(
        file, version=np.asarray(1), window=np.asarray(20), **{**arrays_of(weights()), "head": np.zeros((10**6, 4))}
    )
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
        (bomb(), "should have the arrays"),
        (b"x" * (4 * 1024 * 1024 + 1), "more than 4,194,304 bytes"),
    ],
)
def test_what_is_not_a_trained_network_is_refused_by_name(tmp_path, data, message):
    file = tmp_path / "foreign.npz"
    file.write_bytes(data)
    with pytest.raises(InputError, match=message) as raised:
        read_lstm(file)
    assert "foreign.npz" in str(raised.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"none\.npz"):
        make_forecaster("none.npz")


def test_the_command_trains_and_compares(tmp_path):
    pytest.importorskip("torch")
    load, file = tmp_path / "load.csv", tmp_path / "lstm.npz"
    load.write_text("minute,requests\n" + "".join(f"{n},{int(600 * rate)}\n" for n, rate in enumerate(wave(1400))))
    arguments = ["study", "train-forecaster", str(load), "--out", str(file), "--epochs", "2", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["minutes"], found["judged"]) == (700, 700)
    assert found["errors"].keys() == {"seasonal", "lstm"}
    assert read_lstm(Path(found["file"])).horizon == 60
    wrong = CliRunner().invoke(app, ["study", "train-forecaster", str(load), "--out", str(tmp_path / "lstm.pt")])
    assert isinstance(wrong.exception, UsageError)
