"""What of `--route`, `--instances`, `scenario` and `max_usd_per_hour` goes together."""

import math
import re
from pathlib import Path

import pytest

from serfer.control.scenario import Market, parse_scenario
from serfer.core.errors import InputError, UsageError
from serfer.fleet.open_pool import _label, choose_routing, instance_command, routing_of
from serfer.fleet.purchase import Purchase
from serfer.settings import Settings
from tests.fleet.fakes import SCENARIO, TEXT
from tests.support.scenarios import instance_text


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(TEXT)
    return path


def test_by_default_there_is_no_pool():
    assert choose_routing("serverless", None, None, None) is None
    assert routing_of(Settings()) is None


@pytest.mark.parametrize(
    ("route", "policy", "overflow"),
    [
        ("auto", "break-even", True),
        ("gpu", "instances", False),
        ("instances", "instances", True),
        ("target-tracking", "target-tracking", True),
        ("sagemaker", "sagemaker", False),
        ("ski-rental", "ski-rental", True),
    ],
)
def test_a_route_is_a_policy_and_whether_functions_may_help(file, route, policy, overflow):
    routing = choose_routing(route, "local", file, 7.5)
    assert routing.scenario == parse_scenario(SCENARIO)
    router = routing.router()
    assert (router.policy.name, router.budget_limiter.ceiling) == (policy, 7.5)
    assert router.fall_back(0.0) is overflow
    assert choose_routing(route, "local", file, None).max_usd_per_hour == math.inf


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (("quick", "local", Path("x"), None), "break-even"),
        (("serverless", "local", None, None), "--instances"),
        (("serverless", None, Path("x"), None), "scenario"),
        (("serverless", None, None, 1.0), "max_usd_per_hour"),
        (("auto", None, Path("x"), None), "needs --instances"),
        (("auto", "local", None, None), "needs --set scenario="),
        (("auto", "local", Path("x"), 0.0), "max_usd_per_hour"),
        (("auto", "local", Path("x"), math.nan), "max_usd_per_hour"),
        (("auto", "nowhere", Path("x"), None), "nowhere"),
        (("auto", "static:ftp://a", Path("x"), None), "ftp://a"),
    ],
)
def test_options_that_contradict_are_named(choices, words):
    with pytest.raises(UsageError, match=words):
        choose_routing(*choices)


BUYS = "gpu=ec2:a,gpu/spot=ec2:b,cpu=local"
CREDITS = "credits = {vcpus = 2, per_hour = 24, at_launch = 0, most = 576}"
MORE = instance_text("cpu", 0.36, 0, 5, 0, 10, [[1, 50]]) + instance_text(
    "t3", 0.36, 0.1, 5, 0, 10, [[1, 50]], extra=CREDITS
)


@pytest.fixture
def several(file):
    file.write_text(TEXT.replace("spot_usd_per_hour = 0", "spot_usd_per_hour = 1") + MORE)
    return file


@pytest.mark.parametrize("route", ["mark-spot", "mark-spot:sl_min=0.99"])
@pytest.mark.parametrize("instances", ["local", f"{BUYS},t3=ec2:c"])
def test_a_policy_of_several_types_is_a_route_where_each_has_a_provisioner(several, route, instances):
    assert choose_routing(route, instances, several, None).router().policy.name == route


@pytest.mark.parametrize(
    ("route", "instances", "words"),
    [
        ("mark-spot", "ec2:a", "mark-spot buys gpu/spot, cpu, t3, which"),
        ("mark-spot", BUYS, "mark-spot buys t3, which"),  # the stand-in; its spot price is nothing to it
        ("auto", "cpu=ec2:c", "auto buys gpu, which"),
        ("mark", "gpu/spot=ec2:b", "mark buys gpu, which"),
        ("nonuniform", "cpu=ec2:c", "nonuniform buys gpu, which"),
        ("target-tracking-stepwise", "cpu=ec2:c", "target-tracking-stepwise buys gpu, which"),
        ("auto", "gpu=ec2:a,tpu=ec2:b", "no instance type of that name: it has gpu, cpu, t3"),
        ("nowhere:Mine", "local", "nowhere:Mine"),
        ("serfer.control.scenario:S_PER_HOUR", "local", "serfer.control.scenario:S_PER_HOUR"),
        ("serfer.control.policy:Policy", "local", "serfer.control.policy:Policy"),
    ],
)
def test_a_route_that_cannot_be_is_refused_by_name(several, route, instances, words):
    with pytest.raises(UsageError, match=words):
        choose_routing(route, instances, several, None)


def test_what_a_policy_of_the_users_own_buys_is_left_to_its_plans(several):
    route = "serfer.control.policies.fixed:Instances"
    routing = choose_routing(route, "cpu=ec2:c", several, None)
    assert (routing.specs, routing.router().policy.name) == ({Purchase("cpu"): "ec2:c"}, route)


def test_processes_are_called_by_their_type_whatever_its_name():
    names = [Purchase("g6.xlarge"), Purchase("g6.xlarge", Market.SPOT), Purchase("a b"), Purchase("a/b")]
    labels = [_label(bought) for bought in names]
    assert labels[:2] == ["local-g6.xlarge", "local-g6.xlarge-spot"]
    assert len(set(labels)) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", label) for label in labels)


def test_an_instance_computes_the_largest_batch_of_its_type(several, tmp_path):
    scenario = choose_routing("auto", "local", several, None).scenario
    commands = [instance_command("m", tmp_path, kind.max_batch) for kind in scenario.instances]
    words = [[word for word in command if "max-batch" in word] for command in commands]
    assert words == [["--max-batch=8"], ["--max-batch=1"], ["--max-batch=1"]]


def test_an_unreadable_scenario_is_named_by_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml"):
        choose_routing("auto", "local", tmp_path / "none.toml", None)


def test_options_come_before_settings(file):
    settings = Settings(route="auto", instances="local", scenario_file=file, max_usd_per_hour=3.0)
    assert routing_of(settings).max_usd_per_hour == 3.0
    assert routing_of(settings, route="gpu", max_usd_per_hour=4.0).max_usd_per_hour == 4.0
    assert routing_of(settings, instances="static:http://a:1").instances == "static:http://a:1"
    assert routing_of(settings, route="serverless") is None
