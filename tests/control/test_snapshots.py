"""A policy that is restored from its snapshot goes on as if it had never stopped; what is not a snapshot is refused."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import POLICIES, make_policy
from serfer.control.policy import Learner
from serfer.core.errors import InputError
from tests.control.worlds import QPS, fleet, rows, scenario, seen, steps

WORLD = scenario(5.0, boot_s=40.0)  # ticks of 5 s
LEARNERS = [name for name in POLICIES if isinstance(make_policy(name, WORLD), Learner)]
BURSTS = [(300, 0.0), (120, 1.5 * QPS)] * 12


def copied(policy):
    """Return a new policy that has what is left of another one in a file."""
    other = make_policy(policy.name, WORLD)
    other.restore(json.loads(json.dumps(policy.snapshot(), allow_nan=False)))
    return other


def taught(name, load=BURSTS):
    policy = make_policy(name, WORLD)
    for seconds, rate in steps(load, 5.0):
        policy.observe(seen(seconds, rate))
    return policy


def test_all_policies_that_have_anything_to_learn_keep_it():
    assert {*POLICIES} - {*LEARNERS} == {"serverless"}


@pytest.mark.parametrize("name", LEARNERS)
@settings(derandomize=True, max_examples=10, deadline=None)
@given(
    data=st.data(),
    before=rows(3.5 * QPS, most_s=300),
    after=rows(4.5 * QPS, most_s=300),
    bursts=st.integers(0, 6),
    serving=st.integers(0, 3),
)
def test_restored_policies_decide_as_if_they_had_not_stopped(name, data, before, after, bursts, serving):
    policy = taught(name, BURSTS[: 2 * bursts])
    if serving:
        policy.resume(fleet(serving))
    for seconds, rate in steps(before, data.draw(st.sampled_from([1.0, 3.3, 5.0, 10.0]))):
        policy.observe(seen(seconds, rate))
    other = copied(policy)
    for seconds, rate in steps([*after, *BURSTS[:4]], 5.0):
        assert other.observe(seen(seconds, rate)) == policy.observe(seen(seconds, rate))
    assert other.snapshot() == policy.snapshot()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_snapshot_stays_as_it_is_while_the_policy_goes_on(name):
    """It is written by a thread of its own."""
    policy = taught(name)
    known = policy.snapshot()
    before = json.dumps(known)
    for seconds, rate in steps(BURSTS, 5.0):
        policy.observe(seen(seconds, rate))
    assert json.dumps(known) == before


def test_a_snapshot_holds_what_the_windows_learnt():
    policy = taught("break-even")
    assert policy.snapshot()["windows"]["predictors"][0]["actions"]
    assert copied(policy).snapshot() == policy.snapshot()
    assert make_policy("break-even", WORLD).snapshot()["windows"]["predictors"] == []


def test_a_snapshot_is_bounded_and_levels_that_learnt_nothing_take_little():
    policy = make_policy("break-even", WORLD)
    policy.observe(seen(1.0, 5000 * QPS))
    policy.observe(seen(1.0, 0.0))
    text = json.dumps(policy.snapshot())
    assert len(policy.snapshot()["windows"]["predictors"]) == 1000
    assert len(text) < 2_000_000


def places(value, path=()):
    """Yield the path of each value in a JSON document."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(len(value), 3)):
            yield from places(value[key], (*path, key))


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("wrong", [None, "text", -7, 1e400, [], {}, [[1.0]], float("nan"), 2**70])
def test_any_wrong_value_in_a_snapshot_is_refused_or_taken_as_what_it_is(name, wrong):
    """Nothing but InputError is raised, and what is accepted can decide."""
    known = taught(name).snapshot()
    for path in places(known):
        damaged = copy.deepcopy(known)
        if not path:
            damaged = wrong
        else:
            at = damaged
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = wrong
        policy = make_policy(name, WORLD)
        try:
            policy.restore(damaged)
        except InputError:
            continue
        policy.observe(seen(5.0, QPS))


@pytest.mark.parametrize("name", LEARNERS)
def test_missing_fields_and_other_layouts_are_refused_by_name(name):
    known = taught(name).snapshot()
    for key in known:
        with pytest.raises(InputError, match=f"lacks '{key}'"):
            make_policy(name, WORLD).restore({at: value for at, value in known.items() if at != key})
    for version, age in ((1000, "a newer"), (0, "an older")):
        with pytest.raises(InputError, match=f"{age} layout, {version}"):
            make_policy(name, WORLD).restore({**known, "version": version})
