"""MArk's settings as KEY=VALUE behind its name, in the paper's letters."""

import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.core.errors import UsageError
from serfer_bench.study.policies.mark.forecaster import make_forecaster
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.policy import Mark, MarkSpot
from tests.control.worlds import scenario


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


def test_what_is_not_given_stays_as_it_is_by_default():
    assert options_of("mark:") == options_of("mark") == Mark.options
    spot = options_of("mark-spot:m=100")
    assert (spot.spot, spot.all_types, spot.monitor_queries, spot.slo_met) == (True, True, 100, 0.98)
    assert isinstance(make_policy("mark-spot:m=100", scenario()).guarded, MarkSpot)


@given(m=st.integers(1, 10_000_000), met=st.floats(0, 1), units=st.integers(1, 512))
def test_numbers_are_read_as_they_are_written(m, met, units):
    found = options_of(f"mark:m={m},sl_min={met!r},p_w={units}")
    assert (found.monitor_queries, found.slo_met, found.window) == (m, met, units)


def test_the_name_has_the_settings():
    assert make_policy("mark:m=100", scenario()).name == "mark:m=100"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "slmin=1",
            "mark has no parameter 'slmin': it has forecaster, sl_min, m, l, t, p_u, p_w, p_s, tau, cool_down",
        ),
        ("lstm.npz", "mark has no parameter 'lstm.npz': it has forecaster, sl_min"),
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
        morning = forecaster.forecast(round(9.5 * 3600 / unit_s))[-1]
        assert morning == pytest.approx(100.0, abs=5.0)
