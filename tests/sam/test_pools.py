"""The GPU pool of a deployment: one for each plan, empty until drivers want it, and gone with what nobody asks."""

import shutil
import subprocess

import pytest

from serfer.control.instance_profile import Profile
from serfer.control.scenario import InstanceType
from serfer.core.costs.aws import shipped_aws
from serfer.fleet.open_pool import choose_routing
from serfer.fleet.registry import REQUESTS_PER_S
from serfer.sam.cost.bill import bill, deployed, price_build
from serfer.sam.cost.fixed import fixed_costs
from serfer.sam.cost.scenario import make_scenario
from serfer.sam.options import GpuPool, digest12, pool_name
from serfer.sam.quotas import check_deployable
from serfer.sam.template.template import make_template
from serfer.sam.weights import fetched, uploaded_id
from tests.core.plans import small_plan
from tests.sam.builds import build
from tests.sam.builds import options as small_options
from tests.sam.offered import (
    FETCHED,
    POOL,
    POOLED,
    SPOT_POOL,
    of_type,
    options,
    plans,
    plans_in,
    template,
    unknown_types,
)
from tests.sam.test_template import environment

FACTS = shipped_aws()
CURRENT, PREVIOUS = map(digest12, plans())


@pytest.fixture
def source():
    return template(*POOLED, gpu=POOL)


def test_without_the_choice_there_is_nothing_of_it():
    source = template(*POOLED)
    assert not [name for name in source["Resources"] if "Gpu" in name]
    assert "SERFER_ROUTE" not in environment(source, "current")[0]


def test_group_starts_empty_serves_when_it_answers_and_has_a_warm_pool(source):
    for digest in (CURRENT, PREVIOUS):
        group = source["Resources"][f"GpuGroup{digest}"]
        properties = group["Properties"]
        assert (properties["MinSize"], properties["MaxSize"]) == ("0", {"Ref": "MaxGpuInstances"})
        assert "DesiredCapacity" not in properties
        assert "UpdatePolicy" not in group
    assert source["Parameters"]["MaxGpuInstances"]["Default"] == POOL.most
    (hook,) = source["Resources"][f"GpuGroup{CURRENT}"]["Properties"]["LifecycleHookSpecificationList"]
    assert (hook["LifecycleTransition"], hook["DefaultResult"]) == ("autoscaling:EC2_INSTANCE_LAUNCHING", "ABANDON")
    text, _ = script(source, CURRENT)
    assert f"--lifecycle-hook-name {hook['LifecycleHookName']} " in text
    for digest in (CURRENT, PREVIOUS):
        warm = source["Resources"][f"GpuWarmPool{digest}"]["Properties"]
        assert (warm["PoolState"], warm["MinSize"], warm["MaxGroupPreparedCapacity"]) == ("Stopped", 0, POOL.warm)
        assert warm["AutoScalingGroupName"] == {"Ref": f"GpuGroup{digest}"}
    assert not of_type(template(*POOLED, gpu=GpuPool("g6.xlarge", 4)), "AWS::AutoScaling::WarmPool")


def routing(source, serving):
    """Return what drivers are told of their pool: how they route, its groups, and its scenario."""
    variables, _ = environment(source, serving)
    return tuple(variables[f"SERFER_{name}"] for name in ("ROUTE", "INSTANCES", "SCENARIO_FILE"))


def pooled(digest):
    return "auto", {"Fn::Sub": f"ec2:{pool_name(digest)}"}, f"plans/{digest}/scenario.toml"


def test_drivers_get_the_pool_of_their_plan(source):
    for serving, digest in (("current", CURRENT), (CURRENT, CURRENT), (PREVIOUS, PREVIOUS)):
        assert environment(source, serving)[0]["SERFER_PLAN"] == f"plans/{digest}"
        assert routing(source, serving) == pooled(digest)


def test_a_plan_without_a_scenario_has_no_pool_and_its_drivers_none():
    source = make_template(options(*POOLED, gpu=POOL), plans(), pooled={CURRENT})
    assert f"GpuGroup{CURRENT}" in source["Resources"]
    assert f"GpuGroup{PREVIOUS}" not in source["Resources"]
    assert routing(source, PREVIOUS) == ("serverless", "", "")


def script(source, digest):
    data = source["Resources"][f"GpuTemplate{digest}"]["Properties"]["LaunchTemplateData"]["UserData"]
    return data["Fn::Base64"]["Fn::Sub"]


def test_an_instance_gets_its_plans_weights_and_serves_that_plan(source):
    for digest, plan in zip((CURRENT, PREVIOUS), plans(), strict=True):
        text, words = script(source, digest)
        layers = [layer["Ref"] for layer in words["Weights"]["Fn::Join"][1]]
        assert len(layers) == len(plan.functions)
        assert all(name.startswith(f"Weights{digest}") for name in layers)
        assert f"--plan plans/{digest} " in text
        assert f"--auto-scaling-group-name '${{AWS::StackName}}-gpu-{digest}'" in text
        assert "--exit-when-idle-s 300 --auto-scaling-release" in text


def test_an_instance_reads_the_weights_that_functions_fetch_from_their_bucket(tmp_path):
    source = template(*POOLED, gpu=POOL, places=FETCHED)
    for plan in plans_in(*FETCHED):
        text, _ = script(source, digest12(plan))
        reading = text[text.index("while read -r sum path") : text.index("# Where the image")]
        contents = {"stage-0/weights-0.bin": b"weights 0", "stage-1/weights-0.bin": b""}
        for path in contents:
            (tmp_path / "plans" / digest12(plan) / path).parent.mkdir(parents=True)
        store = tmp_path / "s3"
        for each in fetched([plan]):
            (store / "weights").mkdir(parents=True, exist_ok=True)
            (store / "weights" / each.sha256).write_bytes(contents[each.path])
        moved = reading.replace("/opt/serfer", str(tmp_path)).replace("s3://${WeightsBucket}", str(store))
        run = f'set -Eeuo pipefail\naws() {{ cp "$4" "$5"; }}\n{moved}'
        subprocess.run([shutil.which("bash"), "-c", run], check=True)
        read = {path: (tmp_path / "plans" / digest12(plan) / path).read_bytes() for path in contents}
        assert read == contents
        for each in (store / "weights").iterdir():
            each.write_bytes(b"altered")
        assert subprocess.run([shutil.which("bash"), "-c", run], check=False).returncode != 0
        group = source["Resources"][f"GpuGroup{digest12(plan)}"]
        assert {uploaded_id(each) for each in fetched([plan])} <= {*group["DependsOn"]}


@pytest.fixture
def spot():
    return template(*POOLED, gpu=SPOT_POOL)


def test_spot_instances_are_a_group_of_their_own_that_rebalances_and_drains(spot, source):
    for digest in (CURRENT, PREVIOUS):
        group = spot["Resources"][f"GpuGroup{digest}Spot"]["Properties"]
        assert group["AutoScalingGroupName"] == {"Fn::Sub": pool_name(digest, spot=True)}
        assert group["CapacityRebalance"] is True
        assert {
            hook["LifecycleTransition"]: hook["DefaultResult"] for hook in group["LifecycleHookSpecificationList"]
        } == {"autoscaling:EC2_INSTANCE_LAUNCHING": "ABANDON", "autoscaling:EC2_INSTANCE_TERMINATING": "CONTINUE"}
        assert group["LaunchTemplate"]["LaunchTemplateId"] == {"Ref": f"GpuTemplate{digest}Spot"}
        launched = spot["Resources"][f"GpuTemplate{digest}Spot"]["Properties"]["LaunchTemplateData"]
        assert launched["InstanceMarketOptions"] == {"MarketType": "spot"}
        text = launched["UserData"]["Fn::Base64"]["Fn::Sub"][0]
        assert f"--auto-scaling-group-name '${{AWS::StackName}}-gpu-{digest}-spot'" in text
        assert f"--plan plans/{digest} " in text
        for name in (f"GpuGroup{digest}", f"GpuTemplate{digest}", f"GpuWarmPool{digest}"):
            assert spot["Resources"][name] == source["Resources"][name]
        assert f"GpuWarmPool{digest}Spot" not in spot["Resources"]  # AWS has none for spot instances


def test_what_drivers_get_is_a_route_with_the_scenario_that_is_packaged(spot, tmp_path):
    route, groups, _ = routing(spot, "current")
    priced = InstanceType("g6.xlarge", 0.8, 0.3, 180.0, 60.0, 100.0, ((1, 5.0), (8, 30.0)))
    chosen = small_options(drivers="fleet", gpu=SPOT_POOL)
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(make_scenario(small_plan(), chosen, FACTS, Profile(priced, 200.0)))
    instances = groups["Fn::Sub"].replace("${AWS::StackName}", "shop")
    chosen_routing = choose_routing(route, instances, scenario, None)
    assert [str(bought) for bought in chosen_routing.specs] == ["g6.xlarge", "g6.xlarge/spot"]


def test_a_plan_before_whose_scenario_has_no_spot_price_keeps_its_pool_without_spot_instances():
    source = make_template(options(*POOLED, gpu=SPOT_POOL), plans(), spot={CURRENT})
    assert f"GpuGroup{PREVIOUS}" in source["Resources"]
    assert f"GpuGroup{PREVIOUS}Spot" not in source["Resources"]
    assert routing(source, PREVIOUS) == pooled(PREVIOUS)


@pytest.mark.who_may
def test_every_resource_type_has_a_cost_and_a_permission(source):
    assert unknown_types(source) == set()


def test_an_idle_pool_costs_its_endpoints_and_warm_disks():
    chosen = [small_options(drivers="fleet", gpu=gpu) for gpu in (None, GpuPool("g6.xlarge", 4, 3))]
    without, pooled = ({line.item: line.usd for line in lines(one)} for one in chosen)
    assert pooled.pop("disks of the GPU pool's stopped instances") == pytest.approx(3 * 100 * 0.08)
    assert pooled.pop("interface endpoints") - without.pop("interface endpoints") == pytest.approx(2 * 2 * 730 * 0.01)
    assert pooled == without


def lines(chosen):
    return fixed_costs(make_template(chosen, [small_plan()]), FACTS)


def test_a_bill_notes_the_hourly_cost_of_an_instance(tmp_path):
    chosen = small_options(drivers="fleet", gpu=GpuPool("g6.xlarge", 4))
    source = make_template(chosen, [small_plan()])
    priced = bill(deployed(small_plan(), chosen, FACTS, source), source)
    assert priced.as_dict()["gpu_usd_per_hour"] == 0.8048
    assert any("g6.xlarge, costs $0.8048 an hour while it is on" in note for note in priced.assumed)
    assert any("at most 4 are, $3.22 an hour" in note for note in priced.assumed)
    with_spot = small_options(drivers="fleet", gpu=GpuPool("g6.xlarge", 4, spot=True))
    source = make_template(with_spot, [small_plan()])
    assert any(
        "at most 4 spot" in note for note in bill(deployed(small_plan(), with_spot, FACTS, source), source).assumed
    )
    place = build(tmp_path / "b", drivers="fleet", gpu=GpuPool("g6.xlarge", 4))
    assert price_build(place, FACTS, burst=1).as_dict()["options"]["gpu"]["instance_type"] == "g6.xlarge"


@pytest.mark.parametrize(("store", "usd"), [("s3", 28.4), ("s3express", 6.1), ("valkey", 0)])
def test_a_pools_registry_in_a_bucket_is_priced_and_noted(store, usd):
    """An idle fleet of two drivers pays S3 for each read and each write of the registry."""
    chosen = small_options(drivers="fleet", store=store, gpu=POOL)
    source = make_template(chosen, [small_plan()])
    total = bill(deployed(small_plan(), chosen, FACTS, source), source)
    priced = [line for line in total.idle if line.item.startswith("pool registry")]
    assert sum(line.usd for line in priced) == pytest.approx(usd, rel=0.1)
    month = 730 * 3600
    assert [line.quantity for line in priced[:1]] == ([2 * REQUESTS_PER_S * month] if usd else [])
    notes = [note for note in check_deployable(small_plan(), chosen, FACTS) if "--store valkey" in note]
    assert len(notes) == bool(usd)
    more = bill(deployed(small_plan(), chosen, FACTS, source), source, parameters={"MinDrivers": "4"})
    assert sum(line.usd for line in more.idle if line.item.startswith("pool registry")) >= 1.6 * sum(
        line.usd for line in priced
    )
