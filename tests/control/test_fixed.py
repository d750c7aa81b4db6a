"""The two fixed policies, and policies by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import DEFAULT, POLICIES, make_policy
from serfer.control.policies.fixed import Instances, Serverless
from serfer.core.errors import UsageError
from tests.control.worlds import QPS, fleet, rows, scenario, seen, steps

HOUR = 3600.0


def test_serverless_never_wants_instances():
    policy = Serverless(scenario())
    policy.resume(fleet(5))
    assert {policy.observe(seen(10.0, rate)).total for rate in (0.0, 1.0, 1e9)} == {0}


@settings(derandomize=True, max_examples=20)
@given(load=rows(5 * QPS, most_s=4000))
def test_instances_cover_the_peak_of_the_last_hour(load):
    policy, now, came = Instances(scenario()), 0.0, []
    for seconds, rate in steps(load, 200.0):
        now += seconds
        came.append((now, rate))
        peak = max(rate for when, rate in came if when >= now - HOUR)
        assert policy.observe(seen(seconds, rate)).total == max(1, -(-peak // QPS))


def test_a_peak_is_kept_for_an_hour():
    policy = Instances(scenario())
    assert policy.observe(seen(1.0, 3 * QPS)).total == 3
    assert policy.observe(seen(HOUR, 0.0)).total == 3
    assert policy.observe(seen(1.0, 0.0)).total == 1


@settings(derandomize=True, max_examples=40)
@given(st.integers(1, 50), st.floats(0.01, 500.0), st.lists(st.floats(0.0, 1.0), max_size=4))
def test_resumed_instances_are_kept_for_an_hour(instances, qps, shares):
    policy = Instances(scenario(qps=qps))
    for share in shares:
        policy.observe(seen(10.0, share * qps))
    policy.resume(fleet(instances))
    assert policy.observe(seen(1.0, 0.0)).total == instances
    assert policy.observe(seen(HOUR - 2.0, 0.0)).total == instances
    assert policy.observe(seen(HOUR, 0.0)).total == 1


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_made_by_name_and_decides(name):
    policy = make_policy(name, scenario())
    assert policy.name == name
    policy.resume(fleet(2))
    wanted = policy.observe(seen(1.0, 5.0))
    assert wanted.total >= 0
    assert wanted.reason
    assert "\n" not in wanted.reason


def test_an_unknown_policy_is_refused_with_the_known_names():
    assert DEFAULT in POLICIES
    with pytest.raises(UsageError, match="no policy 'best'") as raised:
        make_policy("best", scenario())
    assert all(name in str(raised.value) for name in POLICIES)
