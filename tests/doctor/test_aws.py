"""What the doctor says of an AWS account: against moto as far as that goes, else against answers of AWS's own shape."""

import functools
import json
import re
from dataclasses import replace

import boto3
import httpx
import pytest
from botocore.stub import Stubber
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError
from serfer.core.plan import sealed
from serfer.doctor import aws as doctor_aws
from serfer.doctor.accounts import quotas_for
from serfer.doctor.aws import Account, Build, examine_aws
from serfer.sam.deployer import Target, actions
from serfer.sam.deployment import RECORD
from serfer.sam.options import GpuPool
from serfer.sam.samconfig import FILE as SAMCONFIG
from serfer.settings import Settings
from tests.core.plans import small_plan
from tests.sam.builds import build

FACTS = shipped_aws()
_NAMES = ("PROFILE", "REGION", "DEFAULT_REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in _NAMES:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def moto(monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    httpx.post(f"http://{host}:{port}/moto-api/reset")  # what it keeps is the process's, not the server's
    yield
    server.stop()


class Stubs:
    """An account whose every client answers what it was given, in order, and refuses anything else."""

    def __init__(self, monkeypatch, arn="arn:aws:iam::123456789012:user/eve"):
        session = boto3.Session("k", "s", region_name="us-east-1")
        self.account = Account(session, "us-east-1", "123456789012", arn, FACTS)
        self._clients, self._stubbers = {}, {}
        monkeypatch.setattr(Account, "client", lambda _self, service, _region=None: self._client(service))

    def _client(self, service):
        if service not in self._clients:
            client = self._clients[service] = self.account.session.client(service)
            self._stubbers[service] = Stubber(client)
            self._stubbers[service].activate()
        return self._clients[service]

    def answers(self, service, operation, answer, request=None):
        self._client(service)
        self._stubbers[service].add_response(operation, answer, request)

    def refuses(self, service, operation, code="AccessDenied", message="no"):
        self._client(service)
        self._stubbers[service].add_client_error(operation, code, message)


@pytest.fixture
def stubs(monkeypatch):
    return Stubs(monkeypatch)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function of choices to their build, which is read once."""
    return functools.cache(lambda **choices: Build.load(build(tmp_path_factory.mktemp("b"), **choices)))


def settings_of(total, free):
    limit = {"ConcurrentExecutions": total, "UnreservedConcurrentExecutions": free, "TotalCodeSize": 80 * 1024**3}
    return {"AccountLimit": limit, "AccountUsage": {"TotalCodeSize": 5 * 1024**3, "FunctionCount": 1}}


def named(checks):
    return {check.name: check for check in checks}


@pytest.mark.who_may
def test_without_credentials_it_says_how_to_get_some(tmp_path):
    checks = named(examine_aws(FACTS, build(tmp_path / "b"), None))
    assert (checks["limits"].ok, checks["region"].found, checks["services"].ok) == (True, "us-east-1", True)
    assert (checks["credentials"].ok, checks["credentials"].found) == (False, "none")
    assert "AWS_PROFILE" in checks["credentials"].remedy
    assert "concurrency" not in checks


def test_region_or_profile_that_is_missing_or_unknown_is_reported(monkeypatch, tmp_path):
    [*_, last] = examine_aws(FACTS)
    assert (last.name, last.ok, "--region" in last.remedy) == ("region", False, True)
    checks = named(examine_aws(FACTS, build(tmp_path / "b"), "us-east-9"))
    assert all("did you mean us-east-" in checks[name].remedy for name in ("services", "limits"))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    [*_, last] = examine_aws(FACTS, region="us-east-1")
    assert (last.ok, "nobody" in last.found) == (False, True)


def test_exceeded_limits_are_reported(tmp_path):
    place = build(tmp_path / "b", store="s3express")
    record = json.loads((place / RECORD).read_text())
    record["options"]["zone"] = "use1-az2"
    (place / RECORD).write_text(json.dumps(record))
    checks = named(examine_aws(FACTS, place))
    assert (checks["limits"].ok, "zone use1-az2" in checks["limits"].remedy) == (False, True)


def test_a_directory_without_a_build_is_refused(tmp_path):
    with pytest.raises(InputError, match="serfer deploy package"):
        examine_aws(FACTS, tmp_path)


@pytest.mark.usefixtures("moto")
def test_an_account_that_can_be_reached_is_looked_at(tmp_path):
    checks = named(examine_aws(FACTS, build(tmp_path / "b")))
    assert checks["credentials"].found.startswith("account 123456789012")
    assert checks["stack demo-dev"].found == "the name is free"
    assert checks["S3"].ok
    assert checks["API Gateway"].ok
    assert {"concurrency", "code storage", "permissions", "stack demo-prod"} <= set(checks)


@pytest.mark.usefixtures("moto")
def test_a_stack_that_is_foreign_or_serves_another_plan_is_reported(tmp_path):
    """The doctor said that such a stack "would be updated", and the update deleted the functions in use."""
    formation = boto3.client("cloudformation", region_name="us-east-1")
    resources, tags = {"Topic": {"Type": "AWS::SNS::Topic"}}, [{"Key": "serfer:stack", "Value": "demo-prod"}]
    place, served = build(tmp_path / "b"), "0" * 12
    [plan] = Build.load(place).deployment.plans

    def looked_at(**plans):
        for stack, names in plans.items():
            body = {"Resources": resources}
            if names:
                outputs = {"FunctionPrefix": stack, "Store": "s3://b/s", "Plans": ",".join(names), "Serving": names[0]}
                body["Outputs"] = {name: {"Value": value} for name, value in outputs.items()}
            formation.create_stack(
                StackName=f"demo-{stack}", TemplateBody=json.dumps(body), Tags=tags if stack == "prod" else []
            )
        checks = named(examine_aws(FACTS, place))
        for stack in plans:
            formation.delete_stack(StackName=f"demo-{stack}")
        return checks["stack demo-dev"], checks["stack demo-prod"]

    dev, prod = looked_at(dev=(), prod=())
    assert (dev.ok, "--name" in dev.remedy) == (False, True)
    assert prod.found == "ours, CREATE_COMPLETE: it would be updated"
    dev, prod = looked_at(dev=(served,), prod=(plan, served))
    assert dev.found == f"ours, CREATE_COMPLETE, serves the plan {served}"
    assert (dev.ok, "--previous-of demo-dev" in dev.remedy, prod.ok) == (False, True, True)


@pytest.mark.who_may
def test_refused_credentials_are_reported(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    [*_, last] = examine_aws(FACTS, region="us-east-1")
    assert (last.name, last.ok, last.found) == ("credentials", False, "EndpointConnectionError")


@pytest.mark.parametrize(
    ("choices", "total", "free", "ok", "found", "remedy"),
    [
        ({"reserved_concurrency": 10}, 1000, 1000, True, "", ""),
        ({"reserved_concurrency": 500}, 1000, 1000, False, "1,000 would be", "100 must stay"),
        ({}, 10, 1, False, "widest stage takes 2", "--set max_tiles=1"),
        ({}, 10, 10, False, "3 queries run at once", 'ThrottleBurst="3"'),  # drivers are functions, too
        ({}, 10, 10, False, "ThrottleBurst lets 333 in", ""),
        ({}, 10, 2, False, "takes 2, its driver one more", "--set max_tiles=1"),
        ({"drivers": "fleet"}, 10, 10, True, "5 queries run at once", ""),
    ],
)
def test_concurrency_has_to_suffice_for_stages_and_drivers(stubs, loaded, choices, total, free, ok, found, remedy):
    stubs.answers("lambda", "get_account_settings", settings_of(total, free))
    check = doctor_aws._concurrency(stubs.account, loaded(**choices))
    assert (check.ok, found in check.found, remedy in (check.remedy or "")) == (ok, True, True)


def test_concurrency_of_a_driver_that_runs_the_plan_is_its_own(stubs, tmp_path):
    place = build(tmp_path / "b")
    loaded = Build.load(place)
    loaded = replace(loaded, deployment=replace(loaded.deployment, driver_runs={loaded.deployment.current: 1769}))
    stubs.answers("lambda", "get_account_settings", settings_of(400, 400))
    assert "400 queries run at once" in doctor_aws._concurrency(stubs.account, loaded).found


def test_parameter_overrides_of_samconfig_are_respected(stubs, tmp_path):
    place = build(tmp_path / "own")
    config = place / SAMCONFIG
    config.write_text(config.read_text().replace('Serving="current"', 'Serving="current" ThrottleBurst="3"'))
    for _ in range(2):
        stubs.answers("lambda", "get_account_settings", settings_of(10, 10))
    assert doctor_aws._concurrency(stubs.account, Build.load(place)).ok
    config.write_text(config.read_text().replace('ThrottleBurst="3"', 'DriverConcurrency="4"'))
    refused = doctor_aws._concurrency(stubs.account, Build.load(place))
    assert (refused.ok, "4 would be" in refused.found, "100 must stay" in refused.remedy) == (False, True, True)


@pytest.mark.parametrize(("total", "ok"), [(10, False), (1000, True)])
def test_memory_that_new_accounts_do_not_have_is_a_finding(stubs, tmp_path, total, ok):
    """A plan of 3,538 MB was "ok" for an account that refuses its functions."""
    plan = small_plan()
    large = sealed(replace(plan, stages=(replace(plan.stages[0], memory_mb=3538), *plan.stages[1:])))
    stubs.answers("lambda", "get_account_settings", settings_of(total, total))
    place = build(tmp_path / "large", large)
    check = doctor_aws._memory(stubs.account, Build.load(place))
    assert (check.ok, "stage-0 has 3,538 MB" in check.found) == (ok, True)
    assert "--memory 3008" in (check.found if ok else check.remedy)
    assert doctor_aws._memory in doctor_aws._needed(Build.load(place))
    limits = doctor_aws._limits(Build.load(place), FACTS, None)
    assert (limits.ok, "3,538" in limits.found) == (True, False)
    assert doctor_aws._memory(stubs.account, Build.load(build(tmp_path / "small"))).ok


def test_code_storage_has_room(stubs, loaded):
    stubs.answers("lambda", "get_account_settings", settings_of(10, 10))
    assert doctor_aws._storage(stubs.account, loaded()).found == "5.0 of 80 GB used, 0.0 GB come"


@pytest.mark.parametrize(("most", "ok"), [(16.0, True), (8.0, False)])
@pytest.mark.parametrize(
    ("spot", "code", "name"), [(False, "L-DB2E81BA", "GPU quota"), (True, "L-3819A6DF", "GPU spot quota")]
)
def test_pool_fits_into_the_quota_of_its_market(stubs, loaded, spot, code, name, most, ok):
    pooled = loaded(drivers="fleet", gpu=GpuPool("g6.xlarge", 4, spot=spot))
    kinds = {"InstanceTypes": [{"InstanceType": "g6.xlarge", "VCpuInfo": {"DefaultVCpus": 4}}]}
    stubs.answers("ec2", "describe_instance_types", kinds, {"InstanceTypes": ["g6.xlarge"]})
    request = {"ServiceCode": "ec2", "QuotaCode": code}
    stubs.answers("service-quotas", "get_service_quota", {"Quota": {"Value": most}}, request)
    check = doctor_aws._gpus(pooled.deployment.options.gpu, name)(stubs.account, pooled)
    assert (check.name, check.ok) == (name, ok)
    assert check.found.startswith(f"{most:.0f} vCPUs")
    assert "4 g6.xlarge would take 16" in check.found
    on_demand, none = loaded(drivers="fleet", gpu=GpuPool("g6.xlarge", 4)), loaded(drivers="fleet")
    looks = [len(doctor_aws._needed(build)) for build in (none, on_demand, pooled)]
    assert [more - looks[0] for more in looks[1:]] == [1, 1 + spot]


@pytest.mark.parametrize(
    ("most", "ok", "found"),
    [
        (5.0, True, "2 of 5 there, 1 more to come"),
        (2.0, False, "2 of 2 there, 1 more to come"),
        (None, True, "2 there; their quota could not be checked"),
    ],
)
def test_a_quota_that_is_known_has_to_fit_the_new_resources(stubs, most, ok, found):
    quotas = [] if most is None else [{"QuotaName": "VPCs per Region", "Value": most, "QuotaCode": "L-1"}]
    stubs.answers("service-quotas", "list_service_quotas", {"Quotas": quotas})
    if most is None:
        stubs.answers("service-quotas", "list_aws_default_service_quotas", {"Quotas": []})
    stubs.answers("ec2", "describe_vpcs", {"Vpcs": [{"VpcId": "a"}, {"VpcId": "b"}]})
    check = doctor_aws._quota(doctor_aws._QUOTAS[0], 1)(stubs.account, None)
    assert (check.ok, check.found) == (ok, found)
    assert ok or "Service Quotas" in check.remedy


@pytest.mark.who_may
def test_a_forbidden_call_means_not_checked(stubs, loaded):
    stubs.refuses("lambda", "get_account_settings", "AccessDeniedException")
    check = doctor_aws._concurrency(stubs.account, loaded())
    assert (check.ok, check.found) == (True, "could not be checked: GetAccountSettings is not allowed")


def test_aws_errors_are_reported(stubs):
    stubs.refuses("s3", "list_buckets", "NotSignedUp")
    look = doctor_aws._reached(*doctor_aws._REACHED["AWS::S3::"])
    check = look(stubs.account, None)
    assert (check.ok, check.found, "may use S3" in check.remedy) == (False, "NotSignedUp", True)


class Simulator:
    """IAM's simulator, which allows what `allows` says of an action, a resource and the condition keys' values."""

    def __init__(self, allows):
        self._allows = allows
        self.resources = set()

    def simulate_principal_policy(self, ActionNames, ResourceArns, ContextEntries, **_):  # noqa: N803 - boto3's names
        assert len(ActionNames) <= 50
        context = {one["ContextKeyName"]: one["ContextKeyValues"][0] for one in ContextEntries}
        [resource] = ResourceArns
        self.resources.add(resource)
        decided = {name: self._allows(name, resource, context) for name in ActionNames}
        results = [
            {"EvalActionName": name, "EvalDecision": "allowed" if allowed else "implicitDeny"}
            for name, allowed in decided.items()
        ]
        return {"EvaluationResults": results}


def permissions(stubs, monkeypatch, packaged, allows):
    simulator = Simulator(allows)
    monkeypatch.setattr(Account, "client", lambda *_: simulator)
    return doctor_aws._permissions(stubs.account, packaged), simulator.resources


@pytest.mark.who_may
def test_permissions_are_simulated_for_every_stack_that_is_deployed(stubs, loaded, monkeypatch):
    packaged = loaded()
    check, resources = permissions(stubs, monkeypatch, packaged, lambda *_: True)
    assert (check.ok, check.found) == (True, f"all {len(actions(packaged.types))} actions are allowed")
    for stack in ("demo-dev", "demo-prod"):
        assert f"arn:aws:cloudformation:us-east-1:123456789012:stack/{stack}/check" in resources
    check, _ = permissions(stubs, monkeypatch, packaged, lambda name, *_: name != "lambda:CreateFunction")
    assert check.found == "not allowed: lambda:CreateFunction for demo-dev; lambda:CreateFunction for demo-prod"
    assert "--deployer-policy" in check.remedy


@pytest.mark.who_may
def test_permissions_for_dev_alone_do_not_cover_prod(stubs, loaded, monkeypatch):
    def allows(name, resource, _context):
        return name != "logs:CreateLogGroup" or "/demo-dev/" in resource

    check, _ = permissions(stubs, monkeypatch, loaded(), allows)
    assert (check.ok, check.found) == (False, "not allowed: logs:CreateLogGroup for demo-prod")


def test_roles_have_to_be_passed_to_every_service_that_assumes_one(stubs, loaded, monkeypatch):
    def allows(name, _resource, context):
        return name != "iam:PassRole" or context["iam:PassedToService"] == "lambda.amazonaws.com"

    check, _ = permissions(stubs, monkeypatch, loaded(), allows)
    assert check.ok
    check, _ = permissions(stubs, monkeypatch, loaded(engine="stepfunctions"), allows)
    assert (check.ok, "iam:PassRole for demo-prod" in check.found) == (False, True)


@pytest.mark.who_may
def test_permissions_that_may_not_be_simulated_could_not_be_checked(stubs, loaded):
    stubs.refuses("iam", "simulate_principal_policy")
    check = doctor_aws._permissions(stubs.account, loaded())
    assert (check.ok, check.found) == (True, "could not be checked: SimulatePrincipalPolicy is not allowed")


def test_the_policies_of_a_roles_session_are_the_roles(monkeypatch):
    stubs = Stubs(monkeypatch, "arn:aws:sts::123456789012:assumed-role/deployer/eve")
    role = {"Path": "/team/", "RoleName": "deployer", "RoleId": "A" * 16, "CreateDate": 0}
    role["Arn"] = "arn:aws:iam::123456789012:role/team/deployer"
    stubs.answers("iam", "get_role", {"Role": role})
    assert doctor_aws._source(stubs.account) == role["Arn"]
    stubs.refuses("iam", "get_role")
    assert doctor_aws._source(stubs.account) == "arn:aws:iam::123456789012:role/deployer"


def test_a_budget_needs_its_tag_only_where_it_is_set(stubs, loaded):
    stubs.answers("ce", "list_cost_allocation_tags", {"CostAllocationTags": []})
    check = doctor_aws._cost_tag(stubs.account, loaded())
    assert (check.ok, "not active" in check.found) == (True, True)


def test_the_deployers_policies_name_resources_where_possible(tmp_path):
    place = build(tmp_path / "b", drivers="fleet", store="valkey")
    policies = json.loads(
        CliRunner().invoke(app, ["doctor", "--aws", "--build", str(place), "--deployer-policy"]).output
    )
    allowed = [statement for document in policies for statement in document["Statement"]]
    for statement in allowed:
        assert not any(action.endswith("*") for action in statement["Action"])
        if statement["Sid"] in {"Lambda", "Iam", "IamPass", "S3", "Logs", "Cloudformation"}:
            assert all(re.search("demo-(dev|prod)|aws-sam-cli|transform", name) for name in statement["Resource"])
    assert "iam:PassRole" in actions(Build.load(place).types)


def test_the_deployers_policies_cover_the_stacks_of_samconfig(tmp_path):
    place = build(tmp_path / "b")
    config = place / SAMCONFIG
    boundary = "arn:aws:iam::123456789012:policy/bound"
    text = config.read_text().replace("demo-prod", "shop-live")
    text = text.replace('LogRetentionDays="3"', f'PermissionsBoundary="{boundary}"')
    head, _, prod = text.partition("[prod.global")
    config.write_text(f"{head}[prod.global{prod.replace('us-east-1', 'eu-west-1')}")
    target = Build.load(place).target("1")
    assert target == Target(["demo-dev", "shop-live"], ["us-east-1", "eu-west-1"], "1")  # one of them is not bounded
    config.write_text(config.read_text().replace('LogRetentionDays="30"', f'PermissionsBoundary="{boundary}"'))
    assert Build.load(place).target("1").boundaries == [boundary]


def test_the_command_ends_with_2_for_options_that_do_not_go_together_and_with_4_where_something_is_missing(tmp_path):
    for given in (["--region", "us-east-1"], ["--build", "x"], ["--deployer-policy"], ["--aws", "--deployer-policy"]):
        assert CliRunner().invoke(app, ["doctor", *given]).exception.exit_code == 2
    result = CliRunner().invoke(app, ["doctor", "--aws", "--build", str(build(tmp_path / "b")), "--json"])
    assert result.exception.exit_code == 4
    checks = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    assert {"credentials", "region", "limits"} <= {check["name"] for check in checks}


@pytest.mark.parametrize(("total", "memory_mb"), [(10, 3008), (400, 3008), (1000, 10240), (None, 3008)])
def test_what_the_account_has_is_kept_for_plans_to_come(stubs, tmp_path, total, memory_mb):
    if total is None:
        stubs.refuses("lambda", "get_account_settings")
    else:
        stubs.answers("lambda", "get_account_settings", settings_of(total, total))
    settings = Settings(cache_dir=tmp_path)
    check = doctor_aws._planning(tmp_path)(stubs.account, None)
    assert (check.ok, f"{memory_mb:,} MB a function and {total or 0:,} environments" in check.found) == (
        True,
        bool(total),
    )
    known = quotas_for(settings, None, "us-east-1")
    assert (known.memory_mb, known.concurrency, known.assumed) == (memory_mb, total or 10, total is None)
