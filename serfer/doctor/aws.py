"""Checks of an AWS account before a deployment; every call only reads."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from boto3 import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import SerferError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.doctor.accounts import remember
from serfer.doctor.machine import Check
from serfer.sam.deployer import Target, policies, statements
from serfer.sam.deployment import Deployment, load_deployment, load_packaged_cold, load_packaged_plan, load_template
from serfer.sam.options import RUNTIMES, GpuPool, Options
from serfer.sam.quotas import check_deployable, check_region, check_template, find_sam, memory_note
from serfer.sam.samconfig import StackSettings, stacks
from serfer.sam.stacks import TAG, check_update, find_stack
from serfer.sam.teardown import REPOSITORY
from serfer.sam.template.intrinsics import Properties, resources

_CONFIG = Config(connect_timeout=5, read_timeout=15, retries={"max_attempts": 2, "mode": "standard"})
_SAM_PATIENCE_S = 30
_AT_ONCE = 8
_ACTIONS_A_CALL = 50
_BURST = 1000
_SHOWN = 6
_GB = 1024**3
_UNKNOWN = "could not be checked"
_REFUSED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError"})
_MAKING = threading.Lock()  # a session makes one client at a time
_STEP = re.compile(r"arn:([a-z-]+):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/.+")


@dataclass(frozen=True)
class Build:
    """A build to be deployed: its record, plans and template, and the resources that the template makes."""

    deployment: Deployment
    plan: Plan
    cold: Plan | None
    template: dict[str, Any]
    stacks: tuple[StackSettings, ...]

    @classmethod
    def load(cls, directory: Path) -> Build:
        deployment = load_deployment(directory)
        plan, template = load_packaged_plan(directory, deployment.current), load_template(directory)
        options = deployment.options
        settings = stacks(directory, options.region) or [StackSettings("", options.name, options.region, {})]
        cold = load_packaged_cold(directory, deployment, plan)
        return cls(deployment, plan, cold, template, tuple(settings))

    def target(self, account: str, partition: str = "aws", *, only: StackSettings | None = None) -> Target:
        """Return where the stacks are deployed to, or one of them, for the deployer's policy."""
        chosen = (only,) if only else self.stacks
        boundaries = [target.parameters.get("PermissionsBoundary", "") for target in chosen]
        return Target(
            stacks=list(dict.fromkeys(target.stack for target in chosen)),
            regions=list(dict.fromkeys(target.region for target in chosen)),
            account=account,
            partition=partition,
            boundaries=sorted(set(boundaries)) if all(boundaries) else (),
        )

    @property
    def plans(self) -> list[Plan]:
        return [self.plan, *([self.cold] if self.cold else [])]

    @property
    def resources(self) -> dict[str, tuple[str, Properties]]:
        """Types and properties of what is made with the template's defaults, by logical id."""
        return resources(self.template, region=self.deployment.options.region)

    def resources_of(self, settings: StackSettings) -> dict[str, tuple[str, Properties]]:
        declared = self.template.get("Parameters", {})
        given = {name: value for name, value in settings.parameters.items() if name in declared}
        return resources(self.template, given, settings.region)

    @property
    def types(self) -> set[str]:
        beside = {REPOSITORY} if self.deployment.images else set()  # SAM CLI makes it, in a stack of its own
        return {resource["Type"] for resource in self.template["Resources"].values()} | beside


@dataclass(frozen=True)
class Account:
    """The account of the credentials, and the region."""

    session: Session
    region: str
    id: str
    arn: str
    facts: AwsFacts

    def client(self, service: str, region: str | None = None) -> Any:  # noqa: ANN401 - a client of boto3's, untyped
        with _MAKING:
            return self.session.client(service, region_name=region or self.region, config=_CONFIG)  # type: ignore[call-overload]


_Look = Callable[[Account, Build | None], Check]


def examine_aws(
    facts: AwsFacts, build: Path | None = None, region: str | None = None, cache: Path | None = None
) -> list[Check]:
    """Check SAM CLI, the account and the region, and whether what BUILD holds can be deployed there.

    The account's quotas are kept in the `cache`, if there is one, for plans to come.
    Raises InputError where BUILD is not what `serfer deploy package` wrote.
    """
    loaded = Build.load(build) if build else None
    checks = [_sam(), *([_limits(loaded, facts, region)] if loaded else [])]
    session, place = _region(loaded, region)
    checks.append(place)
    if session is None or not place.ok:
        return checks
    options = loaded.deployment.options if loaded else Options("serfer")
    checks.append(_exists(replace(options, region=place.found), facts))
    account, identity = _identity(session, place.found, facts)
    checks.append(identity)
    if account is None:
        return checks
    looks = [_concurrency, *([_planning(cache)] if cache else []), _storage, *_needed(loaded)]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return [*checks, *threads.map(lambda look: look(account, loaded), looks)]


def _sam() -> Check:
    try:
        program = find_sam()
    except UnavailableError as error:
        return Check("sam", ok=False, found="none", remedy=str(error))
    try:
        completed = subprocess.run(  # noqa: S603 - the program that was found
            [program, "--version"], capture_output=True, text=True, timeout=_SAM_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check("sam", ok=False, found=f"{program}: {type(error).__name__}", remedy="reinstall aws-sam-cli")
    return Check("sam", ok=True, found=completed.stdout.strip())


def _limits(build: Build, facts: AwsFacts, region: str | None) -> Check:
    options = replace(build.deployment.options, region=region or build.deployment.options.region)
    ample = AccountQuotas.of_quotas(facts, "memory and concurrency have checks of their own")
    try:
        notes = check_deployable(build.plan, options, facts, build.cold, ample)
        check_template(build.template, facts)
    except SerferError as error:
        return Check("limits", ok=False, found=f"{build.plan.model}: refused", remedy=str(error))
    return Check("limits", ok=True, found="; ".join(notes) or f"{build.plan.model} keeps them all")


def _region(build: Build | None, given: str | None) -> tuple[Session | None, Check]:
    """Return a session, and which region it is for: the one asked for, the build's, or the environment's."""
    try:
        session = Session()
    except BotoCoreError as error:
        return None, Check("region", ok=False, found=str(error), remedy="correct AWS_PROFILE, or unset it")
    region = given or (build.deployment.options.region if build else session.region_name)
    if not region:
        return session, Check("region", ok=False, found="none", remedy="give --region, or set AWS_DEFAULT_REGION")
    return session, Check("region", ok=True, found=region)


def _exists(options: Options, facts: AwsFacts) -> Check:
    try:
        check_region(options, facts)
    except SerferError as error:
        return Check("services", ok=False, found=options.region, remedy=str(error))
    runtimes = Session().client("lambda", region_name=options.region).meta.service_model.shape_for("Runtime").enum
    if options.runtime not in runtimes:
        remedy = f"choose another --runtime: {', '.join(RUNTIMES)}"
        return Check("services", ok=False, found=f"botocore does not know {options.runtime}", remedy=remedy)
    return Check("services", ok=True, found=f"{options.region} has them; {options.runtime}")


def _identity(session: Session, region: str, facts: AwsFacts) -> tuple[Account | None, Check]:
    """Check whose credentials these are, in the region itself: one that is not enabled does not accept them."""
    remedy = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret, or sign in with aws sso login"
    try:
        if session.get_credentials() is None:
            return None, Check("credentials", ok=False, found="none", remedy=remedy)
        identity = session.client("sts", region_name=region, config=_CONFIG).get_caller_identity()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "InvalidClientTokenId":
            remedy += f"; or enable {region} for the account"
        return None, Check("credentials", ok=False, found=f"refused: {code}", remedy=remedy)
    except (BotoCoreError, ResponseParserError) as error:
        return None, Check("credentials", ok=False, found=_name(error), remedy=f"{remedy}; and see that AWS is reached")
    account = Account(session, region, identity["Account"], identity["Arn"], facts)
    return account, Check("credentials", ok=True, found=f"account {account.id}, {account.arn}")


def _name(error: Exception) -> str:
    return error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__


def _checked(name: str, remedy: str) -> Callable[[_Look], _Look]:
    """Turn what AWS refuses, and what does not answer, into checks: a refusal leaves the answer unknown."""

    def wrapped(look: _Look) -> _Look:
        def safe(account: Account, build: Build | None) -> Check:
            try:
                return look(account, build)
            except ClientError as error:
                if _name(error) in _REFUSED:
                    return Check(name, ok=True, found=f"{_UNKNOWN}: {error.operation_name} is not allowed")
                return Check(name, ok=False, found=_name(error), remedy=remedy)
            except (BotoCoreError, ResponseParserError) as error:
                return Check(name, ok=False, found=_name(error), remedy="see that this machine reaches AWS")

        return safe

    return wrapped


_MORE = "ask for more in the Service Quotas console"


@_checked("concurrency", _MORE)
def _concurrency(account: Account, build: Build | None) -> Check:
    limits = account.client("lambda").get_account_settings()["AccountLimit"]
    total, free = limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"]
    capacity = f"{total:,} environments at once, {free:,} of them not reserved"
    if build is None:
        return Check("concurrency", ok=True, found=capacity)
    reserved = max(_reserved(build, settings) for settings in build.stacks)
    kept = account.facts.functions.concurrency_kept
    if reserved and reserved > free - kept:
        remedy = f"reserve fewer (--set reserved_concurrency=N): {kept} must stay for all others; or {_MORE}"
        return Check("concurrency", ok=False, found=f"{capacity}; {reserved:,} would be", remedy=remedy)
    widest = sum(max(stage.grid.tiles for stage in plan.stages) for plan in build.plans)
    each = widest + (build.deployment.options.drivers == "function")
    if build.deployment.current in build.deployment.driver_runs:
        each = 1  # the driver itself
    if each > free:
        what = "a cold query's widest stages of both plans take" if build.cold else "a query's widest stage takes"
        taken = f"{what} {widest}" + (", its driver one more" if each > widest else "")
        remedy = f"split into fewer tiles (--set max_tiles={max(1, free - each + widest)}), or {_MORE}"
        return Check("concurrency", ok=False, found=f"{capacity}; {taken}", remedy=remedy)
    at_once = free // each
    capacity = f"{capacity}: {at_once:,} queries run at once, a burst of {_BURST:,} would take {_BURST * each:,}"
    admitted = max(_admitted(build, settings) for settings in build.stacks)
    if admitted > at_once:
        remedy = f'set ThrottleBurst="{at_once}" in parameter_overrides of samconfig.toml, or {_MORE}'
        more = f"{capacity}; ThrottleBurst lets {admitted:,} in, whose drivers would take the stages' environments"
        return Check("concurrency", ok=False, found=more, remedy=remedy)
    return Check("concurrency", ok=True, found=capacity)


def _planning(cache: Path) -> _Look:

    @_checked("planning", _MORE)
    def look(account: Account, _build: Build | None) -> Check:
        quotas = _quotas(account)
        remember(cache, account.region, account.id, quotas, date.today().isoformat())  # noqa: DTZ011 - the user's day
        found = f"split and package assume {quotas.memory_mb:,} MB a function and {quotas.concurrency:,} environments"
        return Check("planning", ok=True, found=f"{found} at once in {account.region} from now on")

    return look


def _quotas(account: Account) -> AccountQuotas:
    """No API call tells the memory: AWS raises it with concurrency, of which new accounts have less than others."""
    total = account.client("lambda").get_account_settings()["AccountLimit"]["ConcurrentExecutions"]
    functions = account.facts.functions
    new = total < functions.concurrency
    memory_mb = min(functions.memory_new_account, functions.memory_max) if new else functions.memory_max
    return AccountQuotas(memory_mb, total, account.id)


def _reserved(build: Build, settings: StackSettings) -> int:
    made = build.resources_of(settings).values()
    return sum(int(properties.get("ReservedConcurrentExecutions", 0)) for _, properties in made)


def _admitted(build: Build, settings: StackSettings) -> int:
    """Return how many driver functions a stack lets start at once; 0 where it has none."""
    _, driver = build.resources_of(settings).get("DriverFunction", ("", {}))
    _, limits = build.resources_of(settings).get("ApiPlan", ("", {}))
    bounds = [driver.get("ReservedConcurrentExecutions"), limits.get("Throttle", {}).get("BurstLimit")]
    return min((int(bound) for bound in bounds if bound is not None), default=0)


@_checked("memory", _MORE)
def _memory(account: Account, build: Build | None) -> Check:
    new = AccountQuotas.new(account.facts)
    notes = [memory_note(plan, new) for plan in build.plans] if build else []
    note = next(filter(None, notes), "")
    if build is None or not note:
        return Check("memory", ok=True, found="no stage has more than new accounts may have")
    quotas = _quotas(account)
    if quotas.memory_mb > new.memory_mb:
        return Check("memory", ok=True, found=f"{_UNKNOWN}: {note}")
    shortage = f"{note}; this account is new, since it may run {quotas.concurrency:,} environments at once"
    remedy = f"split with --memory {new.memory_mb} or less and package again, or ask AWS support for more memory"
    return Check("memory", ok=False, found=shortage, remedy=remedy)


@_checked("code storage", _MORE)
def _storage(account: Account, build: Build | None) -> Check:
    settings = account.client("lambda").get_account_settings()
    most, used = settings["AccountLimit"]["TotalCodeSize"], settings["AccountUsage"]["TotalCodeSize"]
    needed = sum((*build.deployment.bytes.values(), *build.deployment.weights.values())) if build else 0
    usage = f"{used / _GB:.1f} of {most / _GB:.0f} GB used, {needed / _GB:.1f} GB come"
    return Check("code storage", used + needed <= most, usage, f"delete functions and layers, or {_MORE}")


def _needed(build: Build | None) -> Sequence[_Look]:
    if build is None:
        return ()
    kinds = [kind for kind, _ in build.resources.values()]
    looks: list[_Look] = [_stack(settings, build.deployment) for settings in build.stacks]
    looks += [
        _reached(*request) for prefix, request in _REACHED.items() if any(kind.startswith(prefix) for kind in kinds)
    ]
    looks += [_quota(quota, kinds.count(quota.kind)) for quota in _QUOTAS if quota.kind in kinds]
    looks.append(_memory)
    if pool := build.deployment.options.gpu:
        looks += [_gpus(pool, name) for name in _GPU_QUOTAS][: 1 + pool.spot]
    if "AWS::Budgets::Budget" in build.types:
        looks.append(_cost_tag)
    return [*looks, _permissions]


_STUCK = frozenset({"ROLLBACK_COMPLETE", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED"})


def _stack(settings: StackSettings, deployment: Deployment) -> _Look:
    name, label = settings.stack, f"stack {settings.stack}"

    @_checked(label, "give the deployment another --name")
    def look(account: Account, _build: Build | None) -> Check:
        stack = find_stack(account.client("cloudformation", settings.region), name)
        if stack is None:
            return Check(label, ok=True, found="the name is free")
        if not stack.ours:
            return Check(label, ok=False, found=f"{stack.status}, and not SerFer's", remedy="choose another --name")
        if stack.status.endswith("_IN_PROGRESS") or stack.status in _STUCK:
            remedy = "wait until it is done, or delete it with serfer deploy destroy"
            return Check(label, ok=False, found=stack.status, remedy=remedy)
        serves = f", serves the plan {stack.serving}" if stack.serving else ""
        try:
            check_update(stack, deployment)
        except UsageError as error:
            return Check(label, ok=False, found=f"ours, {stack.status}{serves}", remedy=str(error))
        return Check(label, ok=True, found=f"ours, {stack.status}{serves}: it would be updated")

    return look


_REACHED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "AWS::ApiGateway::": ("API Gateway", "apigateway", "get_rest_apis", {"limit": 1}),
    "AWS::S3::": ("S3", "s3", "list_buckets", {}),
    "AWS::S3Express::": ("S3 Express", "s3", "list_directory_buckets", {"MaxDirectoryBuckets": 1}),
    "AWS::ElastiCache::": ("ElastiCache", "elasticache", "describe_serverless_caches", {"MaxResults": 10}),
    "AWS::StepFunctions::": ("Step Functions", "stepfunctions", "list_state_machines", {"maxResults": 1}),
    "AWS::Serverless::StateMachine": ("Step Functions", "stepfunctions", "list_state_machines", {"maxResults": 1}),
    "AWS::ElasticLoadBalancingV2::": ("load balancers", "elbv2", "describe_load_balancers", {"PageSize": 1}),
    "AWS::AutoScaling::": ("Auto Scaling", "autoscaling", "describe_auto_scaling_groups", {"MaxRecords": 1}),
    "AWS::WAFv2::": ("WAF", "wafv2", "list_web_acls", {"Scope": "REGIONAL", "Limit": 1}),
}


def _reached(name: str, service: str, operation: str, arguments: dict[str, Any]) -> _Look:

    @_checked(name, f"see that the account may use {name} in this region")
    def look(account: Account, _build: Build | None) -> Check:
        getattr(account.client(service), operation)(**arguments)
        return Check(name, ok=True, found=f"answers in {account.region}")

    return look


@dataclass(frozen=True)
class _Quota:
    """A quota by its name in Service Quotas, and the paginated call that lists what counts against it."""

    kind: str
    label: str
    service: str
    name: str
    listing: tuple[str, str, str]


_QUOTAS = (
    _Quota("AWS::EC2::VPC", "VPCs", "vpc", "VPCs per Region", ("ec2", "describe_vpcs", "Vpcs")),
    _Quota(
        "AWS::ElasticLoadBalancingV2::LoadBalancer",
        "balancers",
        "elasticloadbalancing",
        "Application Load Balancers per Region",
        ("elbv2", "describe_load_balancers", "LoadBalancers"),
    ),
    _Quota(
        "AWS::ElastiCache::ServerlessCache",
        "serverless caches",
        "elasticache",
        "Serverless caches per Region",
        ("elasticache", "describe_serverless_caches", "ServerlessCaches"),
    ),
    _Quota(
        "AWS::EC2::EIP", "elastic addresses", "ec2", "EC2-VPC Elastic IPs", ("ec2", "describe_addresses", "Addresses")
    ),
)


def _quota(quota: _Quota, needed: int) -> _Look:

    @_checked(quota.label, _MORE)
    def look(account: Account, _build: Build | None) -> Check:
        most = _limit(account, quota)
        service, operation, field = quota.listing
        client = account.client(service)
        if client.can_paginate(operation):
            there = sum(len(page[field]) for page in client.get_paginator(operation).paginate())
        else:
            there = len(getattr(client, operation)()[field])
        if most is None:
            return Check(quota.label, ok=True, found=f"{there} there; their quota {_UNKNOWN}")
        usage = f"{there} of {most:,} there, {needed} more to come"
        return Check(quota.label, there + needed <= most, usage, f"{_MORE}: {quota.name}")

    return look


def _limit(account: Account, quota: _Quota) -> int | None:
    client = account.client("service-quotas")
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        for page in client.get_paginator(operation).paginate(ServiceCode=quota.service):
            for found in page["Quotas"]:
                if found["QuotaName"].casefold() == quota.name.casefold():
                    return int(found["Value"])
    return None


@_checked("cost tag", "activate the tag in the Billing console under Cost allocation tags")
def _cost_tag(account: Account, build: Build | None) -> Check:
    tags = account.client("ce", "us-east-1").list_cost_allocation_tags(TagKeys=[TAG], Status="Active")
    if tags["CostAllocationTags"]:
        return Check("cost tag", ok=True, found=f"{TAG} is active")
    wanted = build is not None and any(kind == "AWS::Budgets::Budget" for kind, _ in build.resources.values())
    remedy = f"activate {TAG} in the Billing console under Cost allocation tags, once a stack has it"
    return Check("cost tag", not wanted, f"{TAG} is not active: MonthlyBudgetUsd would count nothing", remedy)


_GPU_QUOTAS = {  # of vCPUs (K)
    "GPU quota": ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "GPU spot quota": ("L-3819A6DF", "All G and VT Spot Instance Requests"),
}


def _gpus(pool: GpuPool, name: str) -> _Look:
    code, words = _GPU_QUOTAS[name]
    remedy = f"{_MORE}: {words}; or package with a lower gpu_max"

    @_checked(name, remedy)
    def look(account: Account, _build: Build | None) -> Check:
        [kind] = account.client("ec2").describe_instance_types(InstanceTypes=[pool.instance_type])["InstanceTypes"]
        needed = pool.most * kind["VCpuInfo"]["DefaultVCpus"]
        response = account.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)
        most = int(response["Quota"]["Value"])
        usage = f"{most:,} vCPUs of G instances at once, {pool.most} {pool.instance_type} would take {needed:,}"
        return Check(name, needed <= most, usage, remedy)

    return look


_POLICY = "ask an administrator for the policies of serfer doctor --aws --build BUILD --deployer-policy"


@_checked("permissions", _POLICY)
def _permissions(account: Account, build: Build | None) -> Check:
    if build is None or account.arn.endswith(":root"):
        found = "the account's root user may do everything: deploy with a role instead"
        return Check("permissions", ok=True, found=found)
    partition = account.arn.split(":")[1]
    simulator = _Simulator(account.client("iam"), _source(account))
    checked, denied = 0, {}
    for settings in build.stacks:
        wanted = statements(build.types, build.target(account.id, partition, only=settings))
        denied[settings.stack] = sorted(
            action for statement in wanted for action in simulator.denied(statement, settings.region)
        )
        checked = sum(len(statement["Action"]) for statement in wanted)
    if not any(denied.values()):
        return Check("permissions", ok=True, found=f"all {checked} actions are allowed")
    missing = "; ".join(f"{_shortened(names)} for {stack}" for stack, names in denied.items() if names)
    return Check("permissions", ok=False, found=f"not allowed: {missing}", remedy=_POLICY)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _contexts(equals: Mapping[str, Any], region: str) -> list[dict[str, str]]:
    """Return the values of condition keys with which a statement is to allow its actions: one set for each value."""
    where = {"aws:RequestedRegion": region}
    listed = [
        {**where, key: value}
        for key, values in equals.items()
        if key not in where
        for value in ([values] if isinstance(values, str) else values)
    ]
    return listed or [where]


class _Simulator:
    """Asks IAM's simulator what a principal may do, each question once."""

    def __init__(self, client: Any, source: str) -> None:  # noqa: ANN401 - boto3's
        self._client = client
        self._source = source
        self._known: dict[str, set[str]] = {}

    def denied(self, statement: Mapping[str, Any], region: str) -> set[str]:
        """Return the actions of a statement that are allowed on none of its resources, in a region."""
        resources, names = statement["Resource"], statement["Action"]
        contexts = _contexts(statement.get("Condition", {}).get("StringEquals", {}), region)
        allowed: set[str] = set()
        for resource in [resources] if isinstance(resources, str) else resources:
            allowed |= set.intersection(*(self._allowed(names, resource, context) for context in contexts))
        return set(names) - allowed

    def _allowed(self, names: Sequence[str], resource: str, context: Mapping[str, str]) -> set[str]:
        question = json.dumps([names, resource, context])
        if question not in self._known:
            entries = [
                {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
                for key, value in context.items()
            ]
            self._known[question] = self._simulated(names, resource, entries)
        return self._known[question]

    def _simulated(self, names: Sequence[str], resource: str, context: list[dict[str, Any]]) -> set[str]:
        allowed: set[str] = set()
        for start in range(0, len(names), _ACTIONS_A_CALL):
            response = self._client.simulate_principal_policy(
                PolicySourceArn=self._source,
                ActionNames=names[start : start + _ACTIONS_A_CALL],
                ResourceArns=[resource if resource == "*" else resource.replace("*", "check")],
                ContextEntries=context,
                MaxItems=1000,
            )
            allowed |= {
                row["EvalActionName"] for row in response["EvaluationResults"] if row["EvalDecision"] == "allowed"
            }
        return allowed


def _source(account: Account) -> str:
    match = _STEP.fullmatch(account.arn)
    if match is None:
        return account.arn
    partition, number, role = match.groups()
    try:
        arn: str = account.client("iam").get_role(RoleName=role)["Role"]["Arn"]
    except ClientError:
        return f"arn:{partition}:iam::{number}:role/{role}"
    return arn


def deployer_policies(build: Path) -> list[dict[str, Any]]:
    """Return the IAM policies that deploying BUILD's stacks takes, each as long as a managed policy may be.

    ACCOUNT stands for the account's number. Raises InputError.
    """
    loaded = Build.load(build)
    return policies(loaded.types, loaded.target("ACCOUNT"))
