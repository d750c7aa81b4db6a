"""What a live policy saw and decided is written line by line, and replayed to the same decisions."""

import dataclasses
import json

import pytest
from hypothesis import given, settings

from serfer.control.dispatch import Batching
from serfer.control.policies import make_policy
from serfer.control.policy import (
    Dispatched,
    InstanceCount,
    InstanceGroup,
    InstanceState,
    Interruption,
    LatencyWindow,
    Observation,
    ProvisioningPlan,
)
from serfer.control.recording import Decision, RunningFleet, event_fields, header_fields, read_recording, replay
from serfer.control.scenario import Market
from serfer.control.snapshots import write_json
from serfer.core.errors import InputError
from tests.control.worlds import QPS, fleet, rows, scenario, seen, steps

WORLD = scenario(5.0, boot_s=40.0)
BURSTS = [(300, 0.0), (200, 1.5 * QPS)] * 6
FULL = Observation(
    now_s=1.7e9 + 0.1,
    elapsed_s=1.25,
    rate=1 / 3,
    fleet=(InstanceGroup("gpu", Market.SPOT, InstanceState.DRAINING, 3, 8),),
    latency=LatencyWindow(10, 2, 123.4),
    interruptions=(Interruption("gpu", 1),),
    applications={"a": 0.25, "b": 1 / 12},
    dispatched=(Dispatched(7, "gpu", 8), Dispatched(2)),
)
PLAN = ProvisioningPlan(
    (InstanceCount("gpu", Market.ON_DEMAND, 2), InstanceCount("gpu", Market.ON_DEMAND, 1, 4)),
    "a reason",
    4,
    {"gpu": Batching(8, 0.25)},
)


def written(path, header, events):
    path.write_bytes(b"".join(write_json(each) + b"\n" for each in (header, *map(event_fields, events))))
    return path


def recorded(path, load, *, name="break-even", taught=(), serving=0):
    """Write what a policy saw and decided, after it was taught something."""
    policy = make_policy(name, WORLD)
    for seconds, rate in steps(taught, 5.0):
        policy.observe(seen(seconds, rate))
    header, events = header_fields(policy, WORLD, fresh=not taught), []
    if serving:
        events.append(RunningFleet(fleet(serving)))
        policy.resume(fleet(serving))
    for number, (seconds, rate) in enumerate(steps(load, 5.0)):
        observation = seen(seconds, rate, 5.0 * number)
        events.append(Decision(observation, policy.observe(observation)))
    return written(path, header, events)


def replayed(path, name="break-even", world=WORLD):
    header, events = read_recording(path)
    return replay(header, events, world, make_policy(name, world))


def test_every_field_of_an_observation_and_a_plan_comes_back(tmp_path):
    defaults = {field.name: field.default for field in dataclasses.fields(FULL)}
    assert all(getattr(FULL, name) != default for name, default in defaults.items())
    events = [
        Decision(FULL, PLAN),
        Decision(seen(1.0, 0.0), ProvisioningPlan((), "nothing")),
        Decision(FULL, None, "ValueError"),
        RunningFleet(fleet(2)),
    ]
    path = written(tmp_path / "r", header_fields(make_policy("serverless", WORLD), WORLD, fresh=True), events)
    header, back = read_recording(path)
    assert [*back] == events
    assert (header.policy, header.scenario, header.fresh, header.state) == ("serverless", WORLD.digest, True, None)


@pytest.mark.parametrize("name", ["break-even", "mark"])
@settings(derandomize=True, max_examples=10, deadline=None)
@given(load=rows(3.5 * QPS, most_s=300))
def test_a_replay_decides_the_same(tmp_path_factory, name, load):
    path = recorded(tmp_path_factory.mktemp("r") / "r", load, name=name, taught=BURSTS, serving=1)
    report = replayed(path, name)
    assert (report.same, report.first) == (report.decisions, None)
    assert report.recorded == report.replayed


def test_a_decision_that_differs_is_found(tmp_path):
    path = recorded(tmp_path / "r", BURSTS)
    lines = path.read_bytes().splitlines()
    line = json.loads(lines[50])
    line["plan"]["instances"] = [{"kind": "gpu", "market": "on-demand", "count": 9}]
    path.write_bytes(b"\n".join([*lines[:50], json.dumps(line).encode(), *lines[51:], b""]))
    report = replayed(path)
    assert (report.first.at, report.same) == (50, report.decisions - 1)
    assert report.first.recorded.total == 9
    assert report.recorded.most_instances == 9


def test_another_policy_is_told_apart_and_paid_by_the_same_account(tmp_path):
    report = replayed(recorded(tmp_path / "r", BURSTS, name="serverless"), "instances")
    assert report.first is not None
    assert (report.recorded.policy, report.replayed.policy) == ("serverless", "instances")
    queries = sum(seconds * rate for seconds, rate in BURSTS)
    assert report.recorded.usd == pytest.approx(queries * WORLD.serverless.usd_per_query)
    assert report.replayed.instances_usd > 0
    assert report.replayed.most_instances == 2


def test_what_the_policy_began_with_is_needed(tmp_path):
    path = recorded(tmp_path / "r", BURSTS, name="serverless", taught=BURSTS)
    with pytest.raises(InputError, match="had learnt something before"):
        replayed(path, "serverless")
    assert replayed(path, "instances").decisions


def test_another_scenario_is_refused(tmp_path):
    with pytest.raises(InputError, match="other prices or speeds"):
        replayed(recorded(tmp_path / "r", BURSTS), world=scenario(6.0, boot_s=40.0))


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    path = recorded(tmp_path / "r", BURSTS)
    whole = replayed(path).decisions
    path.write_bytes(path.read_bytes()[:-7])
    assert replayed(path).decisions == whole - 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 3 is not JSON"),
        (b"[]", "line 3 should be an object"),
        (b'{"seen": {"now_s": NaN, "elapsed_s": 1, "rate": 1}}', "NaN is not a number"),
        (b'{"seen": {"now_s": 1e999, "elapsed_s": 1, "rate": 1}}', "finite"),
        (b'{"seen": {"now_s": 0, "elapsed_s": -1, "rate": 1}}', "not negative"),
        (b'{"seen": {"now_s": 0, "elapsed_s": 1, "rate": 1, "more": 2}}', "unknown 'more'"),
        (b'{"resume": [{"kind": "a", "market": "b", "state": "c", "count": 1}]}', r"resume\[0\]\.market should be"),
        (b"1" * 2_000_000, "more than"),
        (b"[" * 100_000, "line 3 is not JSON"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, words):
    path = recorded(tmp_path / "r", BURSTS)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[3:], b""]))
    with pytest.raises(InputError, match=words):
        replayed(path)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", "is not JSON"),
        (b"t_seconds,rps\n0,1\n", "is not JSON"),
        (b'{"format": "another"}\n', "is not a recording"),
        (b'{"format": "serfer policy recording", "version": 2}\n', "version 2"),
        (b'{"format": "serfer policy recording", "version": 1, "policy": "break-even"}\n', "scenario should be"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, header, words):
    path = tmp_path / "r"
    path.write_bytes(header)
    with pytest.raises(InputError, match=words):
        read_recording(path)


def test_a_recording_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl"):
        read_recording(tmp_path / "none.jsonl")
