import itertools
import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from serfer.core.errors import PlanError, UsageError
from serfer.core.plan import Gang, sealed
from serfer.pipeline.warm import pinged
from serfer.sam import weights
from serfer.sam.options import Pings, digest12, function_id, machine_id, weights_id
from serfer.sam.template import fragments
from serfer.sam.template import template as module
from serfer.sam.template.functions import state_machine
from serfer.sam.template.intrinsics import Scope, resources
from serfer.sam.template.template import dump, make_template
from serfer.sam.weights import fetched, uploaded_id
from tests.drivers.plans import wide_plan
from tests.sam.offered import (
    FEW,
    KEEPING,
    SERVING,
    every_template,
    findings,
    of_type,
    options,
    placed,
    plans,
    template,
    translated,
    with_cold_plan,
    with_variants,
)

SERVERLESS = "AWS::Serverless::Function"
pytestmark = pytest.mark.usefixtures("region")
DATA = Path(__file__).parents[1] / "data"
DIGEST = re.compile("[0-9a-f]{12,16}")


def test_cfn_lint_finds_nothing():
    assert findings(dump(template(*FEW[-1]))) == []


def test_variants_beside_a_plan_have_functions_that_drivers_invoke_and_are_not_gone_back_to():
    source = with_variants(*SERVING[0])
    current, previous = map(digest12, plans())
    [variant] = {*source["Outputs"]["Plans"]["Value"].split(",")} - {current, previous}
    assert source["Outputs"]["Generations"]["Value"] == f"{current},{previous}"
    assert source["Outputs"]["Variants"]["Value"] == f"{current}:{variant}"
    assert source["Parameters"]["Serving"]["AllowedValues"] == ["current", current, previous]
    told = source["Resources"]["DriverFunction"]["Properties"]["Environment"]["Variables"]
    assert told["SERFER_APPLICATION_PLANS"].split(":") == [f"plans/{each}" for each in (current, previous, variant)]
    [policy] = source["Resources"]["DriverRole"]["Properties"]["Policies"]
    assert f"Stages{variant}" in {one["Sid"] for one in policy["PolicyDocument"]["Statement"]}


def test_no_rule_is_suppressed():
    for chosen, source in every_template():
        assert "cfn-lint" not in json.dumps(source), chosen


@pytest.mark.parametrize("chosen", FEW, ids="-".join)
def test_the_text_says_the_same_as_the_template_without_references_and_is_always_the_same(chosen):
    text = dump(template(*chosen))
    assert yaml.load(text, yaml.CSafeLoader) == template(*chosen)
    assert text == dump(make_template(options(*chosen), plans()))
    assert "Made by `serfer deploy package`" in text.splitlines()[0]
    events = [*yaml.parse(text, yaml.CSafeLoader)]
    assert len(events) > 1000
    assert not [event for event in events if getattr(event, "anchor", None)]


@pytest.mark.parametrize("chosen", FEW, ids="-".join)
def test_the_text_is_the_same_without_libyaml(chosen, monkeypatch):
    text = dump(template(*chosen))
    members = {name: getattr(module._Dumper, name) for name in ("ignore_aliases", "yaml_representers")}
    monkeypatch.setattr(module, "_Dumper", type("Pure", (yaml.SafeDumper,), members))
    assert dump(template(*chosen)) == text


def test_every_function_and_layer_is_built_by_make_from_a_directory_of_its_own():
    for chosen, source in every_template():
        built = [
            resource
            for kind in (SERVERLESS, "AWS::Serverless::LayerVersion")
            for resource in of_type(source, kind).values()
        ]
        images = [each for each in built if each["Properties"].get("PackageType") == "Image"]
        contexts = [each["Metadata"]["DockerContext"] for each in images]
        built = [each for each in built if each not in images]
        assert len(set(contexts)) == len(images)
        assert {resource["Metadata"]["BuildMethod"] for resource in built} == {"makefile"}, chosen
        places = [resource["Properties"].get("CodeUri") or resource["Properties"]["ContentUri"] for resource in built]
        assert len(set(places)) == len(places)
        layers = of_type(source, "AWS::Serverless::LayerVersion").values()
        assert {layer["Properties"]["RetentionPolicy"] for layer in layers} == {"Delete"}
        assert {layer["Metadata"]["BuildArchitecture"] for layer in layers} == {"x86_64"}


def test_stage_functions_are_the_plans():
    current, previous = plans()
    source = template(reserved_concurrency=9, architecture="arm64")
    for plan, (stage, number) in itertools.chain(*(((plan, part) for part in plan.functions) for plan in plans())):
        digest = digest12(plan)
        properties = source["Resources"][function_id(digest, stage, number)]["Properties"]
        assert properties["FunctionName"] == {"Fn::Sub": f"${{AWS::StackName}}-{digest}-{stage}-{number}"}
        assert properties["CodeUri"] == f"plans/{digest}/functions/{stage}-{number}"
        assert properties["MemorySize"] == plan.stages[stage].memory_mb
        assert properties["Layers"] == [{"Ref": "WorkerLayer"}, {"Ref": weights_id(digest, stage, number)}]
        assert (properties["Handler"], properties["Runtime"]) == ("serfer.lambdas.bootstrap.handler", "python3.13")
        assert (properties["Timeout"], properties["Architectures"]) == (60, ["arm64"])
        assert properties["ReservedConcurrentExecutions"] == 9
        assert properties["EventInvokeConfig"]["MaximumRetryAttempts"] == 0
        assert properties["Tags"]["serfer:plan"] == digest
    assert len(of_type(source, SERVERLESS)) == len(current.functions) + len(previous.functions) + 1


def test_a_function_that_fetches_its_weights_waits_for_them_and_finds_them():
    plan = placed(plans()[0], "fetched", "zip", "fetched", "zip")
    source = make_template(options(), [plan])
    for stage, number in plan.functions:
        function = source["Resources"][function_id(digest12(plan), stage, number)]
        variables = function["Properties"]["Environment"]["Variables"]
        if stage in {0, 2}:
            assert function["DependsOn"] == [uploaded_id(plan.stages[stage].functions[number].weights)]
            assert {source["Resources"][name]["Type"] for name in function["DependsOn"]} == {"Custom::SerferWeights"}
            assert variables["SERFER_WEIGHTS"] == {"Fn::Sub": "s3://${WeightsBucket}/weights"}
        else:
            assert "DependsOn" not in function
            assert "SERFER_WEIGHTS" not in variables
    assert source["Outputs"]["Weights"]["Value"] == {"Fn::Sub": "s3://${WeightsBucket}/weights"}
    assert not [name for name in template()["Resources"] if "Weights" in name and not name.startswith("Weights")]
    assert "WeightsBucket" not in template()["Resources"]


def test_generations_share_the_weights_that_they_fetch():
    one, two = (placed(plan, "fetched") for plan in plans())
    uploads = [of_type(make_template(options(), chosen), "Custom::SerferWeights") for chosen in ([one], [one, two])]
    assert uploads[0] == uploads[1]
    keys = [each["Properties"]["Key"] for each in uploads[0].values()]
    assert sorted(keys) == sorted({f"weights/{each.sha256}" for each in fetched([one, two])})


def test_large_weights_are_one_upload_in_pieces(monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES", 4)
    plan = placed(plans()[0], "fetched", "zip", "zip", "zip")
    source = make_template(options(), [plan])
    made = [each["Properties"] for each in of_type(source, "Custom::SerferWeights").values()]
    names = [*of_type(source, "Custom::SerferWeights")]
    assert [each["Piece"] for each in made] == [1, 2, 3]
    assert {(each["Pieces"], each["Bytes"], each["Key"]) for each in made} == {(3, 9, made[0]["Key"])}
    assert "UploadId" not in made[0]
    assert [each["UploadId"] for each in made[1:]] == [{"Fn::GetAtt": [names[0], "UploadId"]}] * 2
    assert [each.get("Tags") for each in made[:2]] == [None, None]
    assert made[2]["Tags"] == [{"Fn::GetAtt": [name, "Tag"]} for name in names[:2]]
    assert source["Resources"][function_id(digest12(plan), 0, 0)]["DependsOn"] == names[-1:]


@pytest.mark.parametrize("chosen", KEEPING, ids="-".join)
def test_results_are_kept_for_as_many_days_in_a_bucket_of_their_own(chosen):
    source = template(*chosen, results_days=2)
    [rule] = source["Resources"]["ResultsBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]
    assert (rule["ExpirationInDays"], rule["Status"]) == (2, "Enabled")
    place = {"Fn::Sub": "s3://${ResultsBucket}/results"}
    assert source["Outputs"]["Results"]["Value"] == place
    driver, _ = environment(source, "current")
    assert (driver["SERFER_RESULTS"], driver["SERFER_RESULTS_TTL_S"]) == (place, "172800")
    for name, function in of_type(source, SERVERLESS).items():
        if name.startswith("Function"):
            variables = function["Properties"]["Environment"]["Variables"]
            assert variables["SERFER_RESULTS"] == place
            assert "SERFER_RESULTS_TTL_S" not in variables  # the driver says how long


def test_plan_that_no_template_can_have_is_refused():
    with pytest.raises(UsageError, match="results_days"):
        make_template(options(results_days=31), plans())
    with pytest.raises(PlanError, match=r"policy of DriverRole.*--stages"):
        make_template(options(), [sealed(wide_plan((100, 1), (100, 1)))])
    with pytest.raises(UsageError, match="one plan or two different ones"):
        make_template(options(), [plans()[0]] * 2)
    # A name in the template is shorter than the ARN that takes its place.
    many = sealed(wide_plan((1200, 1), (1200, 1)))
    with pytest.raises(PlanError, match="--engine push"):
        state_machine(many, options(engine="stepfunctions"))


def environment(source, serving):
    """Return what drivers are told where the parameter Serving says `serving`, and the outputs."""
    scope = Scope(source, {"Serving": serving}, "us-east-1")
    if "DriverFunction" in source["Resources"]:
        variables = source["Resources"]["DriverFunction"]["Properties"]["Environment"]["Variables"]
    else:
        data = source["Resources"]["DriverTemplate"]["Properties"]["LaunchTemplateData"]["UserData"]
        lines = data["Fn::Base64"]["Fn::Sub"][1]["Environment"]["Fn::Join"][1]
        variables = {line["Fn::Join"][1][0].rstrip("="): line["Fn::Join"][1][1] for line in lines}
    return scope.resolved(variables), scope.resolved(source["Outputs"])


@pytest.mark.parametrize("drivers", ["function", "fleet"])
def test_serving_says_which_plan_drivers_use_and_both_have_their_functions(drivers):
    current, previous = (digest12(plan) for plan in plans())
    source = template(drivers, "s3", "stepfunctions")
    assert source["Parameters"]["Serving"]["AllowedValues"] == ["current", current, previous]
    for serving, digest in (("current", current), (current, current), (previous, previous)):
        variables, outputs = environment(source, serving)
        assert variables["SERFER_PLAN"] == f"plans/{digest}"
        assert variables["SERFER_STATE_MACHINE"] == {"Ref": machine_id(digest)} == outputs["StateMachine"]["Value"]
        assert outputs["Serving"]["Value"] == digest
    assert source["Outputs"]["Plans"]["Value"] == f"{current},{previous}"


def test_a_driver_gets_its_settings():
    for chosen, source in every_template():
        variables, outputs = environment(source, "current")
        drivers, _, engine = chosen
        assert variables["SERFER_DRIVER"] == engine == outputs["Engine"]["Value"]
        own = "RunnerLayer" in source["Resources"]  # the driver function runs the plan itself, without any store
        assert variables["SERFER_WORKERS"] == ("inprocess" if own else "aws")
        assert variables["SERFER_FUNCTION_PREFIX"] == {"Ref": "AWS::StackName"}
        assert (
            ("SERFER_STATE_MACHINE" in variables) == engine.startswith("stepfunctions") == ("StateMachine" in outputs)
        )
        assert variables["SERFER_STORE"] == ("memory://" if own else outputs["Store"]["Value"])
        for name, function in of_type(source, SERVERLESS).items():
            if name.startswith("Function"):
                assert function["Properties"]["Environment"]["Variables"]["SERFER_STORE"] == outputs["Store"]["Value"]
        assert "SERFER_FUNCTION_ALIAS" not in variables
        assert ("SERFER_KEYS_FILE" in variables) == (drivers == "fleet") == ("KeysBucket" in outputs)
        assert variables.get("FORWARDED_ALLOW_IPS") == ("10.64.0.0/22" if drivers == "fleet" else None)
        assert ("ApiKeyId" in outputs) == (drivers == "function")
        assert {"Url", "FunctionPrefix", "Plans", "Serving"} <= outputs.keys()


def test_a_body_that_a_driver_takes_fits_into_lambdas_event():
    variables, _ = environment(template(), "current")
    headers = 4 * 10_240  # API Gateway's limit; events have them twice, and what else there is
    assert int(variables["SERFER_API_MAX_BODY_BYTES"]) * 4 / 3 + headers < 6_291_456


def test_snapstart_functions_have_an_alias_and_old_snapshots_go():
    source = template(engine="stepfunctions-express", snapstart=True)
    variables, outputs = environment(source, "current")
    assert variables["SERFER_FUNCTION_ALIAS"] == outputs["Alias"]["Value"] == "live"
    digest = digest12(plans()[0])
    function = source["Resources"][function_id(digest, 0, 0)]["Properties"]
    assert (function["AutoPublishAlias"], function["SnapStart"]) == ("live", {"ApplyOn": "PublishedVersions"})
    aliases = translated(source)["Resources"][f"{machine_id(digest)}"]["Properties"]["DefinitionSubstitutions"]
    assert aliases[function_id(digest, 0, 0)] == {"Ref": f"{function_id(digest, 0, 0)}Aliaslive"}
    versions = of_type(translated(template(snapstart=True)), "AWS::Lambda::Version")
    assert len(versions) == 2 * len(plans()[0].functions)
    assert {version["DeletionPolicy"] for version in versions.values()} == {"Delete"}


def test_a_deployment_can_be_updated_to_another_choice():
    types, machines = defaultdict(set), defaultdict(set)
    for _chosen, source in every_template():
        for name, resource in source["Resources"].items():
            types[name].add(resource["Type"])  # CloudFormation refuses to change it
        for machine in of_type(source, "AWS::Serverless::StateMachine").values():
            machines[machine["Properties"]["Name"]["Fn::Sub"]].add(machine["Properties"]["Type"])
    assert [name for name, kinds in types.items() if len(kinds) > 1] == []
    assert {len(kinds) for kinds in machines.values()} == {1}  # the new one is made while the old one is there


def identities():
    """Return what CloudFormation knows a deployment by: logical ids, with the types and names of their resources."""
    found, sections = defaultdict(set), {"Parameters": set(), "Outputs": set()}
    for _, source in every_template():
        for section in sections:
            sections[section] |= source[section].keys()
        for name, resource in source["Resources"].items():
            named = {
                key: value
                for key, value in resource.get("Properties", {}).items()
                if key.endswith("Name") and "AWS::StackName" in json.dumps(value)
            }
            text = f"{resource['Type']} {json.dumps(named)}" if named else resource["Type"]
            found[DIGEST.sub("PLAN", name)].add(DIGEST.sub("PLAN", text))
    return found, sections


def test_a_deployment_of_5cbe0f9c_is_updated_in_place():
    before = json.loads((DATA / "deployments" / "5cbe0f9c.json").read_text(encoding="utf-8"))
    found, sections = identities()
    assert {name: sorted(found[name]) for name in before["Resources"]} == before["Resources"]
    assert {section: sorted(names & {*before[section]}) for section, names in sections.items()} == {
        section: before[section] for section in sections
    }


@pytest.mark.parametrize("engine", ["stepfunctions", "stepfunctions-express"])
def test_a_machines_text_names_just_the_functions_that_the_template_puts_in(engine):
    plan = plans()[0]
    definition = state_machine(plan, options(engine=engine))
    machine = template(engine=engine)["Resources"][machine_id(digest12(plan))]["Properties"]
    text = json.dumps(definition)
    assert {name for name in machine["DefinitionSubstitutions"] if f'"${{{name}}}"' in text} == {
        function_id(digest12(plan), *part) for part in plan.functions
    }
    assert text.count("${") >= len(plan.functions)
    assert machine["Type"] == ("EXPRESS" if engine.endswith("express") else "STANDARD")
    assert definition["TimeoutSeconds"] == (300 if engine.endswith("express") else 3600)


def test_a_first_deployment_serves_its_only_plan():
    source = make_template(options(), plans()[:1])
    digest = digest12(plans()[0])
    assert source["Parameters"]["Serving"]["AllowedValues"] == ["current", digest]
    for serving in ("current", digest):
        assert environment(source, serving)[0]["SERFER_PLAN"] == f"plans/{digest}"
    assert findings(dump(source)) == []


def test_another_version_of_a_model_has_functions_of_its_own():
    current = plans()[0]
    other = sealed(replace(current, model="altered"))
    names = [set(of_type(make_template(options(), [plan]), SERVERLESS)) for plan in (current, other)]
    assert names[0] & names[1] == {"DriverFunction"}


def test_parts_that_name_the_same_thing_are_a_mistake():
    with pytest.raises(ValueError, match="Resources has A twice"):
        fragments.merge([{"Resources": {"A": 1}}, {"Resources": {"A": 1}}])
    with pytest.raises(KeyError, match="nonsense"):
        fragments.render({"a": ["@nonsense@"]}, {})


def test_short_forms_are_read_as_long_ones():
    text = "a: !Ref B\nc: !GetAtt D.E.F\ng: !Sub [x, {y: !Ref Z}]\nh: !Condition I\n"
    assert fragments.parse(text) == {
        "a": {"Ref": "B"},
        "c": {"Fn::GetAtt": ["D", "E.F"]},
        "g": {"Fn::Sub": ["x", {"y": {"Ref": "Z"}}]},
        "h": {"Condition": "I"},
    }


def test_a_driver_that_cannot_answer_gets_no_queries_but_is_not_replaced():
    """A throttled account or a store that fails for a while would otherwise end all drivers, and boot others as ill."""
    source = template(drivers="fleet")
    assert source["Resources"]["DriverTargets"]["Properties"]["HealthCheckPath"] == "/readyz"
    assert source["Resources"]["Drivers"]["Properties"]["HealthCheckType"] == "EC2"


def test_requests_at_once_leave_environments_for_the_stages():
    widest = max(stage.grid.tiles for stage in plans()[0].stages)
    burst = template()["Parameters"]["ThrottleBurst"]
    assert burst["Default"] * (1 + widest) <= 1000 < (burst["Default"] + 1) * (1 + widest)
    assert f" {burst['Default']} are what" in burst["Description"]


def gang_plan():
    plan = sealed(replace(plans()[0], gangs=(Gang(0, 2, 50.0, 1e-6),)))
    digest = digest12(plan)
    return plan, [function_id(digest, stage, part) for stage, part in ((0, 0), (2, 0), (2, 1), (3, 0))]


def test_a_gang_is_one_function_with_one_layer_and_a_time_limit_of_its_own():
    plan, names = gang_plan()
    made = make_template(options(store="valkey"), [plan])
    functions = of_type(made, SERVERLESS)
    assert [name for name in functions if name.startswith("Function")] == names
    assert [functions[name]["Properties"]["Timeout"] for name in names] == [17, 60, 60, 60]
    assert functions[names[0]]["Properties"]["Description"].startswith("Stages 0 to 1 of ")
    layers = of_type(made, "AWS::Serverless::LayerVersion")
    layer = layers[weights_id(digest12(plan), 0, 0)]
    assert layer["Properties"]["Description"] == "Weights of stages 0 to 1, part 0"
    assert weights_id(digest12(plan), 1, 0) not in layers


@pytest.mark.parametrize("snapstart", [False, True])
def test_a_state_machine_runs_the_stages_of_a_gang_in_its_function(snapstart):
    plan, names = gang_plan()
    chosen = options(engine="stepfunctions", snapstart=snapstart)
    machine = state_machine(plan, chosen)
    stages = [machine["States"][f"stage-{number}"]["ItemProcessor"]["States"] for number in (0, 1)]
    tasks = [states[f"stage-{number}-tile"]["Parameters"] for number, states in enumerate(stages)]
    assert {task["FunctionName"] for task in tasks} == {f"${{{names[0]}}}"}
    assert [task["Payload"]["step"]["stage"] for task in tasks] == [0, 1]
    made = make_template(chosen, [plan])
    [resource] = of_type(made, "AWS::Serverless::StateMachine").values()
    assert [*resource["Properties"]["DefinitionSubstitutions"]] == names
    policies = json.dumps(made["Resources"]["MachineRole"])
    assert all(name in policies for name in names)


class TestColdPlan:
    def test_drivers_may_invoke_the_functions_of_all_plans_and_are_given_the_plan_alone(self):
        main, cold, source = with_cold_plan()
        statements = source["Resources"]["DriverRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
        allowed = [each["Resource"] for each in statements if each["Action"] == "lambda:InvokeFunction"]
        named = {target["Fn::GetAtt"][0] for targets in allowed for target in targets}
        functions = {function_id(digest12(plan), *part) for plan in (main, cold, plans()[1]) for part in plan.functions}
        assert named == functions
        for serving, plan in (("current", main), (digest12(plans()[1]), plans()[1])):
            variables, outputs = environment(source, serving)
            assert variables["SERFER_PLAN"] == f"plans/{digest12(plan)}"
            assert outputs["Serving"]["Value"] == digest12(plan)

    def test_a_cold_plan_cannot_be_served_by_itself(self):
        main, cold, source = with_cold_plan()
        allowed = source["Parameters"]["Serving"]["AllowedValues"]
        assert allowed == ["current", digest12(main), digest12(plans()[1])]
        assert digest12(cold) in source["Outputs"]["Plans"]["Value"].split(",")
        assert "Generations" not in template()["Outputs"]

    def test_the_api_lets_fewer_in_since_each_query_may_use_both(self):
        most = [source["Parameters"]["ThrottleBurst"]["Default"] for source in (template(), with_cold_plan()[2])]
        assert most == [1000 // 5, 1000 // 9]


class TestProvisionedConcurrency:
    def test_environments_of_the_plan_that_is_served_are_kept_as_many_as_queries_need(self):
        current, previous = plans()
        source = template(provisioned_concurrency=3)
        for serving, served in (("current", current), (digest12(previous), previous)):
            made = resources(source, {"Serving": serving})
            for plan in plans():
                for stage, part in plan.functions:
                    _, properties = made[function_id(digest12(plan), stage, part)]
                    tiles = sum(tile.function == part for tile in plan.stages[stage].tiles)
                    kept = properties.get("ProvisionedConcurrencyConfig")
                    assert kept == ({"ProvisionedConcurrentExecutions": 3 * tiles} if plan is served else None)

    def test_it_is_of_an_alias_by_which_drivers_invoke(self):
        source = template(provisioned_concurrency=1)
        variables, outputs = environment(source, "current")
        assert variables["SERFER_FUNCTION_ALIAS"] == outputs["Alias"]["Value"] == "live"
        assert variables["SERFER_PREWARM"] == "never"
        made = translated(source)
        functions = [resource["Properties"] for resource in of_type(source, SERVERLESS).values()]
        aliases = of_type(made, "AWS::Lambda::Alias").values()
        assert len(aliases) == len(functions) - 1  # the driver has none
        assert all("ProvisionedConcurrencyConfig" in alias["Properties"] for alias in aliases)
        statements = source["Resources"]["DriverRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
        invoked = [one["Resource"] for one in statements if one["Action"] == "lambda:InvokeFunction"]
        assert {name for targets in invoked for target in targets for name in target} == {"Ref"}  # aliases


class TestPings:
    def test_a_schedule_invokes_the_driver_with_an_event_that_it_knows(self):
        source = template(pings=Pings(5, 3))
        rule = source["Resources"]["PingRule"]["Properties"]
        assert rule["ScheduleExpression"] == "rate(5 minutes)"
        [target] = rule["Targets"]
        assert target["Arn"] == {"Fn::GetAtt": ["DriverFunction", "Arn"]}
        assert pinged(json.loads(target["Input"])) == 3
        assert template(pings=Pings(1))["Resources"]["PingRule"]["Properties"]["ScheduleExpression"] == "rate(1 minute)"

    def test_no_other_rule_may_invoke_it(self):
        permission = template(pings=Pings(5))["Resources"]["PingPermission"]["Properties"]
        assert permission["Principal"] == "events.amazonaws.com"
        assert permission["SourceArn"] == {"Fn::GetAtt": ["PingRule", "Arn"]}

    def test_there_are_none_unless_they_are_chosen(self):
        [*others, (_, pinging)] = every_template()
        assert of_type(pinging, "AWS::Events::Rule")
        for _, source in others:
            assert not of_type(source, "AWS::Events::Rule")
            for function in of_type(source, SERVERLESS).values():
                assert "ProvisionedConcurrencyConfig" not in function["Properties"]
