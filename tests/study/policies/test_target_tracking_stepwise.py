"""Stepwise target tracking: half load, the last minute, one step a cooldown."""

from itertools import pairwise

import pytest

from serfer_bench.study.policies.target_tracking_stepwise import StepwiseTargetTracking
from tests.control.worlds import QPS, fleet, scenario, seen, steps


def desired(load, policy=None, step_s=10.0):
    policy = policy or StepwiseTargetTracking(scenario())
    return [policy.observe(seen(*step)).total for step in steps(load, step_s)]


def changes(on, before=1):
    """Return (step, change) of each change."""
    moves = enumerate(pairwise([before, *on]))
    return [(number, after - earlier) for number, (earlier, after) in moves if after != earlier]


@pytest.mark.parametrize(("load", "instances"), [(0.0, 1), (0.5, 1), (0.51, 2), (1.0, 2), (1.75, 4)])
def test_instances_are_kept_half_loaded_and_there_is_always_one(load, instances):
    assert desired([(6000, load * QPS)])[-1] == instances


def test_scaling_is_one_step_in_300_seconds():
    policy = StepwiseTargetTracking(scenario())
    up = changes(desired([(1800, 2 * QPS)], policy))
    assert up == [(0, 1), (30, 1), (60, 1)]
    down = changes(desired([(1800, 0.0)], policy), before=4)
    assert [change for _, change in down] == [-1, -1, -1]
    assert [later[0] - earlier[0] for earlier, later in pairwise(down)] == [30, 30]


def test_the_last_minute_counts_and_nothing_before_it():
    policy = StepwiseTargetTracking(scenario())
    desired([(3600, 0.4 * QPS)], policy)
    assert desired([(40, 1.0 * QPS)], policy) == [1, 2, 2, 2]  # (50 * 0.4 + 10) / 60 = 0.5, and a second one after that
    on = desired([(600, 0.0)], policy)
    assert on[:26] == [2] * 26  # it cools
    assert on[-1] == 1
    steady = StepwiseTargetTracking(scenario())
    desired([(3600, 3 * QPS)], steady)
    assert desired([(50, QPS)], steady) == [6, 5, 5, 5, 5]  # 26.7 queries/s, 23.3, and then it cools
    assert "10.0 queries/s" in steady.observe(seen(10.0, QPS)).reason


def test_a_late_observation_counts_for_its_whole_duration():
    policy = StepwiseTargetTracking(scenario())
    assert policy.observe(seen(600.0, 0.75 * QPS)).total == 2
    assert policy.observe(seen(600.0, 0.0)).total == 1


def test_a_policy_resumes_with_running_instances():
    policy = StepwiseTargetTracking(scenario())
    policy.resume(fleet(4))
    assert desired([(600, 2 * QPS)], policy) == [4] * 60
    nothing = StepwiseTargetTracking(scenario())
    nothing.resume(fleet(0))
    assert nothing.observe(seen(10.0, 0.0)).total == 1
