"""One function, no second invocation: when, what the template then has, and who answers health checks."""

import json
from dataclasses import replace

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.core.plan import sealed
from serfer.sam.build import health
from serfer.sam.cost.bill import bill, deployed
from serfer.sam.cost.driver_runs import DRIVER_MB, decide, require
from serfer.sam.cost.marginal import Deployed, query_usage
from serfer.sam.options import Pings, digest12, weights_id
from serfer.sam.template.intrinsics import resources
from serfer.sam.template.template import dump, make_template
from tests.api.test_function import rest
from tests.drivers.plans import wide_plan
from tests.sam.offered import findings, options, placed

FACTS = shipped_aws()
LIMIT = FACTS.functions.package_limit


def one_function(memory_mb=3538, weights_in="zip", **more):
    plan = wide_plan((1,))
    return placed(sealed(replace(plan, stages=(replace(plan.stages[0], memory_mb=memory_mb),), **more)), weights_in)


def unexplained(plan):
    """The same plan as read without explanation.json."""
    [stage] = plan.stages
    tiles = tuple(replace(tile, serial_ms=None, parallel_ms=None) for tile in stage.tiles)
    return replace(plan, limit=None, stages=(replace(stage, tiles=tiles, predicted_ms=None, predicted_usd=None),))


def heavy(plan):
    """The same plan with 600 MB of weights."""
    [function] = plan.stages[0].functions
    larger = replace(function, weights=replace(function.weights, bytes=600 << 20))
    return sealed(replace(plan, stages=(replace(plan.stages[0], functions=(larger,)),)))


def reason(plan, unzipped=0, **choices):
    """What keeps a driver from running a plan, although it was told to."""
    chosen = options(driver_runs="always", **choices)
    assert not decide(plan, chosen, FACTS, unzipped).runs
    with pytest.raises(UsageError, match="driver_runs=always") as refused:
        require(plan, chosen, FACTS, unzipped)
    return str(refused.value)


class TestRule:
    def test_a_second_invocation_is_saved_until_decoding_at_the_plans_memory_costs_more(self):
        runs = [decide(one_function(memory_mb), options(), FACTS).runs for memory_mb in range(1000, 10001, 500)]
        assert runs == sorted(runs, reverse=True)
        assert runs[0]
        assert not runs[-1]

    def test_dollars_cross_where_the_terms_of_the_rule_do(self):
        facts = FACTS.functions
        rate = facts.price_gb_second / 1024
        for memory_mb in (2000, 9000):
            decided = decide(one_function(memory_mb), options(driver_runs="always"), FACTS)
            waiting = decided.apart.seconds * DRIVER_MB * rate + facts.price_request
            decoding = FACTS.services.driver_seconds * (memory_mb - DRIVER_MB) * rate
            assert (decided.own.usd < decided.apart.usd) == (decoding < waiting)

    def test_it_is_faster_by_an_invocation_and_uses_no_store(self):
        decided = decide(one_function(), options(), FACTS)
        assert decided.apart.seconds - decided.own.seconds > FACTS.functions.invoke_floor
        items = {line.item for line in decided.own.lines}
        assert {"driver's compute", "driver's invocation"} <= items
        assert not [item for item in items if item.startswith(("workers'", "store:"))]

    def test_a_plan_of_which_nothing_is_predicted_runs_in_the_driver_only_if_told_to(self):
        plan = unexplained(one_function())  # as it comes from a stack's functions
        assert not decide(plan, options(), FACTS).runs
        told = decide(plan, options(driver_runs="always"), FACTS)
        assert (told.runs, told.memory_mb) == (True, decide(one_function(), options(), FACTS).memory_mb)

    def test_memory_holds_what_the_driver_decodes_with_and_sessions(self):
        assert decide(one_function(128), options(), FACTS).memory_mb == DRIVER_MB
        assert decide(heavy(one_function(128, "fetched")), options(), FACTS).memory_mb == 920 + 1320

    def test_cold_queries_fetch_weights_in_the_driver(self):
        own = Deployed(heavy(one_function(weights_in="fetched")), options(), FACTS, 3538, driver_runs=True)
        items = {line.item: line for line in query_usage(own, 1.0).lines}
        assert items["weights: reads by new environments"].quantity == 600 / 8
        assert query_usage(own, 1.0).usd > query_usage(own).usd

    def test_what_a_driver_cannot_run_is_refused_with_the_reason(self):
        plan = one_function()
        assert "tasks of" in reason(sealed(wide_plan((2, 1))))
        assert "container image" in reason(one_function(weights_in="image"))
        assert "--drivers fleet" in reason(plan, drivers="fleet")
        assert "--engine poll" in reason(plan, engine="poll")
        assert "--engine stepfunctions" in reason(plan, engine="stepfunctions")
        assert "--snapstart" in reason(plan, snapstart=True)
        assert "reserved_concurrency" in reason(plan, reserved_concurrency=5)
        assert "--store valkey" in reason(plan, store="valkey")
        assert "provisioned_concurrency" in reason(plan, provisioned_concurrency=1)
        assert "ping_queries" in reason(plan, pings=Pings(5, 2))
        assert f"{LIMIT + 1:,} bytes" in reason(plan, LIMIT + 1)
        with pytest.raises(UsageError, match="cold plan"):
            require(plan, options(driver_runs="always"), FACTS, has_cold=True)
        assert not decide(plan, options(), FACTS, has_cold=True).runs
        assert decide(plan, options(), FACTS, LIMIT).runs
        assert decide(plan, options(pings=Pings(5)), FACTS).runs
        assert not decide(plan, options(driver_runs="never"), FACTS).runs


def template(*plans, memories=None, **choices):
    runs = {digest12(plan): 3538 for plan in plans if len(plan.functions) == 1} if memories is None else memories
    return make_template(options(**choices), plans, driver_runs=runs)


def driver(source, serving="current"):
    return resources(source, {"Serving": serving})["DriverFunction"][1]


class TestTemplate:
    def test_the_driver_has_the_plans_memory_layers_and_no_store_to_ask(self):
        plan = one_function()
        given = driver(template(plan))
        assert given["MemorySize"] == 3538
        layers = [{"Ref": name} for name in ("DriverLayer", "RunnerLayer", weights_id(digest12(plan), 0, 0))]
        assert given["Layers"] == layers
        variables = given["Environment"]["Variables"]
        assert (variables["SERFER_WORKERS"], variables["SERFER_STORE"]) == ("inprocess", "memory://")
        assert "SERFER_WEIGHTS" not in variables

    def test_fetched_weights_are_there_before_the_driver_which_may_read_them(self):
        source = template(one_function(weights_in="fetched"))
        [uploaded] = [name for name in source["Resources"] if name.startswith("Uploaded")]
        assert source["Resources"]["DriverFunction"]["DependsOn"] == [uploaded]
        assert driver(source)["Environment"]["Variables"]["SERFER_WEIGHTS"] == {
            "Fn::Sub": "s3://${WeightsBucket}/weights"
        }
        [policy] = source["Resources"]["DriverRole"]["Properties"]["Policies"]
        assert {"Weights", "WeightsMissing"} <= {each["Sid"] for each in policy["PolicyDocument"]["Statement"]}

    def test_going_back_to_a_plan_of_several_functions_invokes_them(self):
        current, before = one_function(), sealed(wide_plan((2, 1)))
        source = template(current, before)
        assert driver(source)["MemorySize"] == 3538
        given = driver(source, digest12(before))
        assert given["MemorySize"] == DRIVER_MB
        assert given["Layers"] == [{"Ref": "DriverLayer"}]
        assert given["Environment"]["Variables"]["SERFER_WORKERS"] == "aws"
        assert given["Environment"]["Variables"]["SERFER_STORE"] != "memory://"

    def test_one_function_has_no_stage_function_bucket_worker_layer_or_rights_to_them(self):
        plans = one_function(), one_function(model="the one before")
        source = template(*plans)
        stages = {"WorkerRole", "WorkerLayer", "WorkersLog", "WorkerErrors", "StoreBucket", "StoreBucketPolicy"}
        assert not stages & source["Resources"].keys()
        assert not [name for name in source["Resources"] if name.startswith("Function")]
        text = json.dumps(source)
        assert "StoreBucket" not in text
        [policy] = source["Resources"]["DriverRole"]["Properties"]["Policies"]
        assert [each["Sid"] for each in policy["PolicyDocument"]["Statement"]] == ["OwnLog"]
        assert source["Outputs"]["Store"]["Value"] == "memory://"
        assert source["Outputs"]["DriverRuns"]["Value"] == source["Outputs"]["Plans"]["Value"]
        for memories in ({}, None):  # another kind beside it: what it needs, for itself alone
            kinds = template(plans[0], sealed(wide_plan((2, 1))), memories=memories)
            made = [name for name in kinds["Resources"] if name.startswith(f"Function{digest12(plans[0])}")]
            assert (stages <= kinds["Resources"].keys(), bool(made)) == (True, memories == {})

    def test_health_checks_go_to_a_function_of_little_memory_without_layers(self):
        source = template(one_function())
        made = source["Resources"]
        properties = made["HealthFunction"]["Properties"]
        assert properties["MemorySize"] <= 256
        assert "Layers" not in properties
        for path in ("healthz", "readyz"):
            name = f"Api{path.capitalize()}"
            assert made[name]["Properties"]["PathPart"] == path
            method = made[f"{name}Method"]["Properties"]
            assert method["ApiKeyRequired"]
            assert "HealthFunction" in json.dumps(method["Integration"])

    def test_a_deployment_of_the_api_is_another_one_where_its_methods_are(self):
        without, with_health = template(one_function(), memories={}), template(one_function())
        names = [
            [name for name, made in source["Resources"].items() if made["Type"] == "AWS::ApiGateway::Deployment"]
            for source in (without, with_health)
        ]
        assert names[0] != names[1]
        for source, [name] in zip((without, with_health), names, strict=True):
            made = source["Resources"]
            methods = {each for each, one in made.items() if one["Type"] == "AWS::ApiGateway::Method"}
            assert set(made[name]["DependsOn"]) == methods
            assert made["ApiStage"]["Properties"]["DeploymentId"] == {"Ref": name}

    def test_drivers_take_all_environments_where_no_stage_needs_any(self):
        burst = template(one_function())["Parameters"]["ThrottleBurst"]["Default"]
        assert int(burst) == FACTS.functions.concurrency

    def test_a_plan_that_the_driver_does_not_run_changes_nothing(self):
        plan = sealed(wide_plan((2, 1)))
        assert template(plan) == make_template(options(), [plan])
        assert "HealthFunction" not in template(plan)["Resources"]

    def test_cfn_lint_finds_nothing(self, monkeypatch):
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        plans = one_function(weights_in="fetched"), one_function(weights_in="fetched", model="the one before")
        assert findings(dump(template(*plans))) == []
        assert findings(dump(template(plans[0], sealed(wide_plan((2, 1)))))) == []


def test_the_bill_is_that_of_the_function_in_the_template():
    plan, chosen = one_function(), options()
    source = template(plan)
    there = deployed(plan, chosen, FACTS, source)
    assert (there.driver_runs, there.driver_mb) == (True, 3538)
    priced = bill(there, source)
    assert priced.warm.usd == decide(plan, chosen, FACTS).own.usd
    assert any("a second invocation" in note for note in priced.assumed)
    apart = make_template(chosen, [plan])
    assert any("a second invocation" in note for note in bill(deployed(plan, chosen, FACTS, apart), apart).assumed)


@pytest.fixture
def lambda_client(monkeypatch):
    """A stubbed client of Lambda in place of the one that /readyz makes."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("lambda", region_name="us-east-1", **keys)
    monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
    monkeypatch.setenv("DRIVER_FUNCTION", "shop-driver")
    with Stubber(client) as stubber:
        yield stubber


class TestHealth:
    def ask(self, method, path):
        response = health.handler(rest(method, path), None)
        return response["statusCode"], json.loads(response["body"])

    def test_it_lives_without_asking_anyone(self):
        assert self.ask("GET", "/healthz") == (200, {"live": True})
        assert self.ask("HEAD", "/healthz")[0] == 200
        assert self.ask("POST", "/healthz")[0] == 405

    def test_it_is_ready_where_the_driver_could_be_invoked_and_does_not_invoke_it(self, lambda_client):
        dry = {"FunctionName": "shop-driver", "InvocationType": "DryRun"}
        lambda_client.add_response("invoke", {"StatusCode": 204}, dry)
        assert self.ask("GET", "/readyz") == (200, {"ready": True})
        lambda_client.add_client_error("invoke", "AccessDeniedException", "no", 403)
        status, body = self.ask("GET", "/readyz")
        assert (status, body["ready"]) == (503, False)
        assert "AccessDenied" in body["functions"]
        assert ClientError.__name__ not in body["functions"]
