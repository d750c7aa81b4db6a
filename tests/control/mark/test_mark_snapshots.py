"""MArk that is restored from its snapshot goes on as if it had not stopped, whatever it forecasts with."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.mark.forecaster import FORECASTERS
from serfer.control.policies.mark.lstm import LstmForecaster, LstmWeights
from serfer.control.policies.mark.policy import Mark, MarkSpot
from serfer.control.policies.mark.seasonal import SeasonalSmoothing
from serfer.control.policy import InstanceGroup, InstanceState, Interruption, LatencyWindow, Observation
from serfer.control.scenario import Market
from serfer.core.errors import InputError
from tests.control.worlds import CREDITS, QPS, fleet, rows, scenario, seen, steps


def spot_world():
    """Return a scenario with spot instances and burstable ones that stand in for them."""
    world = scenario(5.0, boot_s=40.0)
    spot = replace(world.instance, spot_usd_per_hour=1000.0)
    return replace(world, instances=(spot, replace(spot, name="t2", qps=4.0, spot_usd_per_hour=0.0, credits=CREDITS)))


WORLD = spot_world()


def lstm(window=6, horizon=4):
    """Return a network of 3 hidden units."""
    rng = np.random.default_rng(7)
    shapes = [(12,), (12, 3), (12,), (horizon, 3), (horizon,)]
    return LstmForecaster(LstmWeights(window, *(0.3 * rng.standard_normal(shape) for shape in shapes)))


MAKES = {"seasonal": SeasonalSmoothing.of_units, "short": lambda _: SeasonalSmoothing(12, 3), "lstm": lambda _: lstm()}


@pytest.fixture(autouse=True)
def forecasters(monkeypatch):
    for name, make in MAKES.items():
        monkeypatch.setitem(FORECASTERS, name, make)


def policy_of(kind, forecaster):
    return kind(WORLD, replace(kind.options, forecaster=forecaster))


def copied(policy, forecaster):
    """Return a new policy that has what is left of another one in a file."""
    other = policy_of(type(policy), forecaster)
    other.restore(json.loads(json.dumps(policy.snapshot(), allow_nan=False)))
    return other


def groups(market):
    """Draw fleets of both types, some of them leaving."""
    state = st.sampled_from(InstanceState)
    one = st.builds(InstanceGroup, st.sampled_from(["gpu", "t2"]), st.just(market), state, st.integers(1, 9))
    return st.lists(one, max_size=4).map(tuple)


def observations(market):
    """Draw what a live policy sees: fleets, lost instances, and late queries."""
    late = st.builds(lambda answered, late: LatencyWindow(answered, min(late, answered), 1.0), COUNTS, COUNTS)
    lost = st.lists(st.builds(Interruption, st.just("gpu"), st.integers(1, 5)), max_size=1).map(tuple)
    seconds, rate = st.floats(0.1, 200.0), st.floats(0.0, 20 * QPS)
    one = st.builds(Observation, st.just(0.0), seconds, rate, groups(market), st.none() | late, lost)
    return st.lists(one, max_size=30)


COUNTS = st.integers(0, 2000)


@pytest.mark.parametrize("forecaster", MAKES)
@pytest.mark.parametrize("kind", [Mark, MarkSpot])
@settings(derandomize=True, max_examples=15, deadline=None)
@given(data=st.data(), load=rows(20 * QPS, most_s=1200))
def test_restored_policies_decide_as_if_they_had_not_stopped(kind, forecaster, data, load):
    policy = policy_of(kind, forecaster)
    market = Market.SPOT if kind is MarkSpot else Market.ON_DEMAND
    for seconds, rate in steps(load, 10.0):
        policy.observe(seen(seconds, rate))
    if data.draw(st.booleans()):
        policy.resume(fleet(3, WORLD.instance))
    for each in data.draw(observations(market)):
        policy.observe(each)
    other = copied(policy, forecaster)
    for each in [*data.draw(observations(market)), *(seen(10.0, 3 * QPS) for _ in range(60))]:
        assert other.observe(each) == policy.observe(each)
    assert other.snapshot() == policy.snapshot()


def taught(kind=MarkSpot, forecaster="short"):
    """Return a policy that has seen notices, losses and late queries."""
    policy = policy_of(kind, forecaster)
    for minute in range(41):
        leaving = (InstanceGroup("gpu", Market.SPOT, InstanceState.LEAVING, 2),) if minute == 39 else ()
        serving = InstanceGroup("gpu", Market.SPOT, InstanceState.SERVING, 5)
        window = LatencyWindow(700, 90, 500.0)
        policy.observe(Observation(0.0, 60.0, 8 * QPS, (serving, *leaving), window))
    return policy


def test_a_snapshot_holds_all_that_was_learnt():
    known = taught().snapshot()
    assert known["forecaster"] == "SeasonalSmoothing"
    assert known["standby"]["lost_qps"] == 2 * QPS
    assert known["plans"]
    assert 0 < sum(known["monitor"]["answered"]) < 2000
    assert known["launched_s"] > 0


def damaged(known, path, value):
    """Return a snapshot with another value at a place."""
    fields = json.loads(json.dumps(known))
    at = fields
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return fields


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["plans", 0, "instances", 0, "kind"], "p5", r"plans\[0\].instances\[0\].kind should be one of gpu, t2"),
        (["plans", 0, "instances", 0, "market"], "black", "market should be one of on-demand, spot"),
        (["plans", 0, "at"], 1e9, "at should be finite numbers"),
        (["plans"], [{}] * 10_001, "plans should be a list of at most 10000 items"),
        (["standby", "leaving"], {"p5": 1}, "standby.leaving has 'p5', which the scenario has not"),
        (["forecaster"], "LstmForecaster", "forecaster should be one of SeasonalSmoothing"),
        (["forecast", "season"], [0.0] * 5, "the seasonal forecast.season should be numbers of shape"),
        (["forecast", "count"], 5, r"the seasonal forecast.first should be numbers of shape \(5,\)"),
        (["sampler", "passed_s"], 61.0, "sampler.passed_s should be finite numbers from 0 to 60"),
        (["soon"], 1e13, "soon should be finite numbers from 0 to 1e"),
        (["version"], 3, "newer layout"),
    ],
)
def test_what_is_not_a_snapshot_of_this_policy_is_refused_by_name(path, value, words):
    known = taught().snapshot()
    with pytest.raises(InputError, match=words):
        policy_of(MarkSpot, "short").restore(damaged(known, path, value))


@pytest.mark.parametrize("peaks", [[1.0] * 5, [1.0] * 7, [1.0] * 5 + [-1.0], "text", [math.nan] * 6])
def test_peaks_of_another_window_than_the_networks_are_refused(peaks):
    known = taught(forecaster="lstm").snapshot()
    with pytest.raises(InputError, match=r"the LSTM's forecast.peaks"):
        policy_of(MarkSpot, "lstm").restore({**known, "forecast": {"peaks": peaks}})


def test_a_snapshot_is_bounded_however_long_the_load_lasts():
    policy = policy_of(Mark, "seasonal")
    for seconds, rate in steps([(3600, 5 * QPS), (3600, 0.0)] * 60, 30.0):
        policy.observe(seen(seconds, rate))
    known = policy.snapshot()
    assert known["forecast"]["first"] == []
    assert len(known["plans"]) <= 11  # of each minute of the cool-down, and the monitor's
    assert len(json.dumps(known)) < 5000
    assert len(json.dumps(taught(Mark, "seasonal").snapshot())) < 5000


class Latest:
    """A forecaster of the user's own, without a snapshot."""

    def observe(self, peak):
        self.peak = peak

    def forecast(self, units):
        return [self.peak] * units


def test_a_forecaster_that_keeps_nothing_is_named(monkeypatch):
    monkeypatch.setitem(FORECASTERS, "latest", lambda _: Latest())
    policy = policy_of(Mark, "latest")
    for action in (policy.snapshot, lambda: policy.restore(taught(Mark).snapshot())):
        with pytest.raises(InputError, match="forecaster latest keeps nothing: it has no snapshot and restore"):
            action()
