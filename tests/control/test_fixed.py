"""The two fixed policies, and policies by name."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import DEFAULT, POLICIES, make_policy, serves_alone
from serfer.control.policies.fixed import Instances, Serverless
from serfer.control.policies.target_tracking import SageMaker, TargetTracking
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


def desired(load, policy=None, step_s=10.0):
    policy = policy or TargetTracking(scenario())
    return [policy.observe(seen(*step)).total for step in steps(load, step_s)]


@pytest.mark.parametrize(
    ("load", "instances"), [(0.0, 1), (0.69, 1), (0.7, 1), (0.71, 2), (1.4, 2), (1.41, 3), (7.0, 10), (70.1, 101)]
)
def test_instances_are_scaled_out_in_proportion_after_one_minute(load, instances):
    on = desired([(120, load * QPS)])
    assert on[:5] == [1] * 5  # the first minute is not over
    assert on[5:] == [instances] * 7


def test_instances_are_scaled_in_after_15_minutes_below_90_percent_of_the_target():
    policy = TargetTracking(scenario())
    assert desired([(60, 7.0 * QPS)], policy)[-1] == 10
    on = desired([(1200, 3.0 * QPS)], policy)
    assert on[: 15 * 6 - 1] == [10] * (15 * 6 - 1)
    assert on[15 * 6 - 1 :] == [5] * (5 * 6 + 1)


@pytest.mark.parametrize(
    ("then", "after"),
    [
        ([(3600, 6.4)], 10),  # within a tenth of the target
        ([(3600, 6.2)], 9),
        ([(14 * 60, 1.0), (60, 6.9), (14 * 60, 1.0)], 10),  # a minute at the target starts the 15 minutes again
        ([(14 * 60, 1.0), (60, 6.9), (15 * 60, 1.0)], 2),
        ([(60, 14.0)], 20),  # a scale-out may follow another at once
    ],
)
def test_instances_change_beyond_a_tenth_of_the_target(then, after):
    policy = TargetTracking(scenario())
    assert desired([(60, 7.0 * QPS)], policy)[-1] == 10
    assert desired([(seconds, load * QPS) for seconds, load in then], policy)[-1] == after


def test_a_falling_load_is_followed_once_in_a_cooldown_of_300_seconds():
    policy = TargetTracking(scenario())
    desired([(60, 700.0 * QPS)], policy)
    minutes = desired([(60, 600.0 * 0.85**minute * QPS) for minute in range(40)], policy)[5::6]
    changes = [minute for minute in range(1, 40) if minutes[minute] != minutes[minute - 1]]
    assert changes[0] == 14  # 600 of 1,000 instances is below 630: the 15 minutes are 0 to 14
    assert {later - earlier for earlier, later in pairwise(changes)} == {5}


def test_a_late_observation_counts_for_the_minutes_that_it_has():
    policy = TargetTracking(scenario())
    assert policy.observe(seen(600.0, 2.0 * QPS)).total == 3
    assert policy.observe(seen(899.0, 0.0)).total == 3
    assert policy.observe(seen(60.0, 0.0)).total == 1


def test_a_policy_resumes_with_running_instances():
    policy = TargetTracking(scenario())
    policy.resume(fleet(4))
    assert desired([(600, 2.0 * QPS)], policy) == [4] * 60
    policy.resume(fleet(0))
    assert policy.observe(seen(10.0, 0.0)).total == 1


def test_a_sagemaker_endpoint_is_half_loaded_and_scales_out_after_three_minutes_above():
    policy = SageMaker(scenario())
    assert serves_alone(policy)
    assert desired([(300, 2.0 * QPS)], policy)[5::6] == [1, 1, 4, 4, 4]
    assert desired([(120, 3.0 * QPS), (60, 2.0 * QPS), (120, 3.0 * QPS)], policy)[-1] == 4
    assert desired([(60, 3.0 * QPS)], policy)[-1] == 6
