from dataclasses import replace

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError, UsageError
from serfer.sam.cost.bill import deployed
from serfer.sam.cost.fixed import fixed_costs
from serfer.sam.cost.marginal import query_usage
from serfer.sam.template.intrinsics import check_parameters, resources
from serfer.sam.template.template import make_template
from tests.core.plans import small_plan
from tests.sam.builds import options
from tests.sam.offered import COMBINATIONS, placed, template, unknown_types

FACTS = shipped_aws()


def usd(template, item, **given):
    return sum(line.usd for line in fixed_costs(template, FACTS, **given) if line.item == item)


@pytest.mark.who_may
@pytest.mark.parametrize(("drivers", "store", "engine"), COMBINATIONS)
def test_every_resource_type_has_a_cost_and_a_permission(drivers, store, engine):
    template = make_template(options(drivers=drivers, store=store, engine=engine), [small_plan()])
    assert unknown_types(template) == set()


def test_a_function_as_driver_with_objects_in_s3_costs_cents_while_idle():
    template = make_template(options(), [small_plan()])
    assert sum(line.usd for line in fixed_costs(template, FACTS)) < 3


def test_a_public_cache_brings_its_least_and_no_endpoint():
    template = make_template(options(store="valkey-public"), [small_plan()])
    assert usd(template, "cache, valkey") == pytest.approx(6.13, abs=0.01)
    assert usd(template, "interface endpoints") == 0


def test_a_cache_brings_its_least_and_endpoints_in_two_zones():
    template = make_template(options(store="valkey"), [small_plan()])
    assert usd(template, "cache, valkey") == pytest.approx(6.13, abs=0.01)
    assert usd(template, "interface endpoints") == pytest.approx(2 * 730 * 0.01)
    assert usd(make_template(options(store="redis"), [small_plan()]), "cache, redis") == pytest.approx(91.25)


def test_a_fleet_brings_machines_disks_a_balancer_and_a_web_acl():
    template = make_template(options(drivers="fleet", architecture="arm64"), [small_plan()])
    items = {line.item for line in fixed_costs(template, FACTS)}
    assert {"drivers, c7g.large", "drivers' disks", "load balancer", "public IPv4 addresses", "web ACL"} <= items
    assert usd(template, "drivers, c7g.large") == pytest.approx(2 * 730 * FACTS.instances["c7g.large"])
    more = usd(template, "drivers, c7g.large", parameters={"MinDrivers": 3})
    assert more == pytest.approx(1.5 * usd(template, "drivers, c7g.large"))


def test_snapshots_cost_while_idle_for_each_generation():
    plan, chosen = small_plan(), options(snapstart=True)
    other = replace(plan, digest="f" * 64)
    one, two = (usd(make_template(chosen, plans), "SnapStart snapshots") for plans in ([plan], [plan, other]))
    gigabytes = sum(stage.memory_mb * len(stage.functions) for stage in plan.stages) / 1024
    assert one == pytest.approx(gigabytes * 730 * 3600 * FACTS.functions.price_snapstart_cached)
    assert two == pytest.approx(2 * one)


def test_a_machine_without_a_price_is_refused_with_the_setting():
    template = make_template(options(drivers="fleet"), [small_plan()])
    with pytest.raises(InputError, match=r"SERFER_AWS_FILE: instances has no price for 'x9\.huge'"):
        fixed_costs(template, FACTS, {"DriverInstanceType": "x9.huge"})


def alarm(**properties):
    return {"Type": "AWS::CloudWatch::Alarm", **properties}


TEMPLATE = {
    "Parameters": {
        "Email": {"Type": "String", "Default": ""},
        "Places": {"Type": "CommaDelimitedList", "Default": "a,b"},
    },
    "Conditions": {
        "Told": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Email"}, ""]}]},
        "Quiet": {"Fn::Not": [{"Condition": "Told"}]},
        "Both": {"Fn::And": [{"Condition": "Told"}, {"Condition": "Quiet"}]},
        "Any": {"Fn::Or": [{"Condition": "Told"}, {"Condition": "Quiet"}]},
    },
    "Mappings": {"Sizes": {"us-east-1": {"Memory": 512}}},
    "Globals": {"Function": {"MemorySize": 128, "Timeout": 3}},
    "Resources": {
        "One": alarm(Condition="Told"),
        "Two": alarm(Condition="Both"),
        "Three": alarm(
            Condition="Any", Properties={"Metrics": [{"MetricStat": {}}, {"Expression": "a"}, {"MetricStat": {}}]}
        ),
        "Maker": {
            "Type": "AWS::Serverless::Function",
            "Properties": {
                "MemorySize": {"Fn::FindInMap": ["Sizes", {"Ref": "AWS::Region"}, "Memory"]},
                "Places": {"Ref": "Places"},
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
                "Notes": {"Fn::If": ["Told", "x", {"Ref": "AWS::NoValue"}]},
                "List": [
                    {"Fn::If": ["Quiet", 1, {"Ref": "AWS::NoValue"}]},
                    {"Fn::If": ["Told", 2, {"Ref": "AWS::NoValue"}]},
                ],
            },
        },
    },
}


def test_conditions_parameters_and_mappings_decide_the_resources():
    made = resources(TEMPLATE)
    assert set(made) == {"Three", "Maker"}
    assert set(resources(TEMPLATE, {"Email": "a@b"})) == {"One", "Three", "Maker"}
    assert made["Maker"][1] == {
        "MemorySize": 512,
        "Timeout": 3,
        "Places": ["a", "b"],
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
        "List": [1],
    }


def test_an_alarm_costs_by_the_metrics_that_it_looks_at():
    assert usd(TEMPLATE, "alarms") == pytest.approx(0.2)
    assert usd(TEMPLATE, "alarms", parameters={"Email": "a@b"}) == pytest.approx(0.3)


def test_fetched_weights_cost_their_storage_and_requests_of_new_environments():
    plan = placed(small_plan(), "fetched")
    large = replace(plan.stages[0].functions[0].weights, bytes=548_000_000)
    stage = replace(plan.stages[0], functions=(replace(plan.stages[0].functions[0], weights=large),))
    plan = replace(plan, stages=(stage, *plan.stages[1:]))
    template = make_template(options(), [plan])
    assert unknown_types(template) == set()
    assert usd(template, "weights in S3") == pytest.approx(0.548 * 0.023)
    usage = [query_usage(deployed(plan, options(), FACTS, template), share) for share in (0.0, 1.0)]
    gets = [sum(line.quantity for line in each.lines if line.item.startswith("weights:")) for each in usage]
    assert gets == [0, 2 * 66]  # two tiles, 8 MiB a request


@pytest.mark.parametrize(("architecture", "price"), [("x86_64", 4.1667e-6), ("arm64", 3.3334e-6)])
def test_provisioned_environments_cost_while_idle_those_of_the_plan_that_is_served_alone(architecture, price):
    """By hand: 2 queries at once, of two tiles with 1,769 MB in the first stage and one in the last, 730 hours."""
    plan, chosen = small_plan(), options(provisioned_concurrency=2, architecture=architecture)
    first, last = (stage.memory_mb / 1024 for stage in plan.stages)
    by_hand = (4 * first + 2 * last) * 730 * 3600 * price
    for every in ([plan], [plan, replace(plan, digest="f" * 64)]):
        assert usd(make_template(chosen, every), "provisioned concurrency") == pytest.approx(by_hand)


DECLARED = template("fleet", "valkey")["Parameters"]
ARN = "arn:aws:acm:us-east-1:123456789012:certificate/0a-1b"


@pytest.mark.parametrize(
    ("name", "value", "wants"),
    [
        ("Nothing", "1", "the template has AlarmEmail"),
        ("Serving", "zzz", "one of current"),
        ("LogRetentionDays", "999999", "one of 1, 3"),
        ("MinDrivers", "abc", "is a number"),
        ("MinDrivers", "1e999", "number from 1 up"),
        ("MinDrivers", "-5", "number from 1 up"),
        ("FirstZone", "9", "number from 0 to 5"),
        ("CertificateArn", "mine", "should match"),
    ],
)
def test_parameters_that_cloudformation_refuses_are_refused(name, value, wants):
    with pytest.raises(UsageError, match=f"--parameter {name}:? .*{wants}"):
        check_parameters(DECLARED, {name: value})


def test_valid_parameters_are_accepted():
    check_parameters(
        DECLARED, {"MinDrivers": "3", "CertificateArn": ARN, "Serving": "current", "LogRetentionDays": "30"}
    )
