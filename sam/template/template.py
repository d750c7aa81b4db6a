"""The template of a deployment: hand-written parts and what is generated for the plan, as one."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

try:
    from yaml import CSafeDumper as SafeDumper  # four times as fast, where PyYAML was built with libyaml
except ImportError:
    from yaml import SafeDumper  # type: ignore[assignment]

from serfer import __version__
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.pipeline.warm import environments, ping_event
from serfer.registry.records import document_name
from serfer.sam.options import DAY_S, LIVE, GpuPool, Options, digest12, function_id, machine_id, pool_name, weights_id
from serfer.sam.template import fragments
from serfer.sam.template.fragments import Part, allow, attach
from serfer.sam.template.functions import generation, upload, vpc, weights_layer
from serfer.sam.weights import URL, fetched, uploaded_id

CURRENT = "current"
"""The value of the parameter Serving for the plan that was packaged last."""
SCENARIO = "scenario.toml"
"""The file of a plan's pool for drivers, beside its plan.json (sam/cost/scenario.py)."""
MEMORY = "memory://"
"""The store of a driver function that runs its plan itself."""
_CACHE_VERSIONS = {"valkey": "8", "redis": "7", "valkey-public": "9"}
"""Valkey 9 where it has to be: in a stack that is there it would be an upgrade of the cache under load."""
_DRAINING: Final = {
    "LifecycleHookName": "ending",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "HeartbeatTimeout": 60,
    "DefaultResult": "CONTINUE",
}
_API_METHODS = {
    "ApiDeployment": ["ApiRootMethod", "ApiProxyMethod"],
    "ApiHealthDeployment": ["ApiRootMethod", "ApiProxyMethod", "ApiHealthzMethod", "ApiReadyzMethod"],
}
"""The methods of the REST API, by its deployment, whose name changes with them."""
_NOTHING = {"Ref": "AWS::NoValue"}
_INSTANCES = {"x86_64": "c7i.large", "arm64": "c7g.large"}
_ORDER = (
    *("AWSTemplateFormatVersion", "Transform", "Description", "Metadata", "Parameters", "Conditions"),
    *("Resources", "Outputs"),
)
_HEAD = """\
# Made by `serfer deploy package` from sam/template/parts and the plan: change those, not this file, and package again.
# Then: sam build && sam deploy --guided (docs/how-to/deploy.md).
"""


def make_template(
    options: Options,
    plans: Sequence[Plan],
    pooled: Collection[str] | None = None,
    cold: Mapping[str, Plan] | None = None,
    driver_runs: Mapping[str, int] | None = None,
    spot: Collection[str] | None = None,
    beside: Mapping[str, Sequence[Plan]] | None = None,
    *,
    concurrency: int | None = None,
) -> Part:
    """Return the SAM template of a deployment, its intrinsic functions in their long form.

    `plans` are the current one and, after an update, the one before, of which the parameter Serving chooses one. By the
    twelve digits of these plans: `pooled` have a pool, `spot` spot instances, too (None: all, where options say so),
    `cold` are their cold plans, `beside` plans of other variants, `driver_runs` the MB of a driver that runs the plan.
    An account runs `concurrency` environments at once.
    """
    options.check()
    cold, beside = cold or {}, beside or {}
    others = [plan for variants in beside.values() for plan in variants]
    every = [*{digest12(plan): plan for plan in (*plans, *cold.values(), *others)}.values()]
    for plan in every:
        options.check_plan(plan)
    if not 1 <= len({digest12(plan) for plan in plans}) == len(plans) <= 2:  # noqa: PLR2004 - current and previous
        raise UsageError(f"a deployment has one plan or two different ones, not {len(plans)}")
    driver_runs = driver_runs or {}
    concurrency = concurrency or shipped_aws().functions.concurrency
    queries = [_together(plans[0], cold), *([plan] for plan in beside.get(digest12(plans[0]), ()))]
    room = concurrency if digest12(plans[0]) in driver_runs else _driver_room(queries, concurrency)
    api = f"Api{'Health' if driver_runs else ''}Deployment"
    variables = {
        **_variables(options),
        "burst": room,
        "concurrency": f"{concurrency:,}",
        "api_deployment": api,
        "api_methods": _API_METHODS[api],
    }
    weights, digests = fetched(every), [digest12(plan) for plan in plans]
    invoked = any(digest12(plan) not in driver_runs for plan in every)
    chosen = _chosen(options, fetches=bool(weights), driver_runs=bool(driver_runs), invokes=invoked)
    parts = [fragments.load(name, variables) for name in chosen]
    environment = {"SERFER_STORE": MEMORY, **fragments.merge(parts).get("Environment", {})}
    parts += [upload(weight, options) for weight in weights]
    parts += [
        weights_layer(plan, 0, 0, options) if digest12(plan) in driver_runs else generation(plan, options, environment)
        for plan in every
    ]
    with_pool = [digest for digest in digests if options.gpu and (pooled is None or digest in pooled)]
    with_spot = [each for each in with_pool if options.gpu and options.gpu.spot and (spot is None or each in spot)]
    if options.gpu:
        parts += _pools(options, options.gpu, [plan for plan in plans if digest12(plan) in with_pool], with_spot)
    whole = fragments.merge([*parts, _serving(digests, options, with_pool, with_spot)])
    if options.applications is not None:  # of both generations: a release may have variants of either
        own = dict.fromkeys([*digests, *map(digest12, others)])
        whole["DriverEnvironment"]["SERFER_APPLICATION_PLANS"] = os.pathsep.join(f"plans/{digest}" for digest in own)
    whole["Outputs"] |= _plans(plans, every, cold, beside, driver_runs)
    whole["Outputs"]["Store"] = {"Description": "URL of the store.", "Value": environment["SERFER_STORE"]}
    resources = whole["Resources"]
    if driver_runs:
        own = _run_in_driver(plans, driver_runs, resources, environment)
        whole["DriverEnvironment"] |= own["DriverEnvironment"]
        whole["Statements"]["DriverRole"] += own["Statements"]["DriverRole"]
    _provision(resources, plans, options)
    _place(resources, whole["Statements"], options)
    attach(resources, whole["Statements"])
    _set_environment(resources, {**environment, **whole["DriverEnvironment"]})
    whole |= {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Transform": "AWS::Serverless-2016-10-31",
        "Description": f"SerFer {__version__}: images classified by functions, engine {options.engine}, "
        f"store {options.store}, drivers {options.drivers}",
    }
    return {section: copy.deepcopy(whole[section]) for section in _ORDER if section in whole}


def _together(plan: Plan, cold: Mapping[str, Plan]) -> list[Plan]:
    """Return the plans whose functions one query may use: its cold plan's, while the other's start."""
    return [plan, *([cold[digest12(plan)]] if digest12(plan) in cold else [])]


def _driver_room(queries: Iterable[Sequence[Plan]], concurrency: int) -> int:
    """Return how many driver functions leave an account room for the widest stages of the plans of any one query."""
    widest = max(sum(max(stage.grid.tiles for stage in plan.stages) for plan in plans) for plans in queries)
    return max(1, concurrency // (1 + widest))


def _plans(
    plans: Sequence[Plan],
    every: Sequence[Plan],
    cold: Mapping[str, Plan],
    beside: Mapping[str, Sequence[Plan]],
    driver_runs: Collection[str],
) -> Part:
    outputs: Part = {"Plans": {"Description": "The plans that there are.", "Value": ",".join(map(digest12, every))}}
    if driver_runs:
        what = "The plans that the driver function runs itself, which have no functions of their own."
        outputs["DriverRuns"] = {"Description": what, "Value": ",".join(driver_runs)}
    if cold or beside:
        pairs = (":".join(map(digest12, _together(plan, cold))) for plan in plans)
        what = "The plans that drivers may use, the current one first, each with its cold plan after a colon."
        outputs["Generations"] = {"Description": what, "Value": ",".join(pairs)}
    if beside:
        lists = (":".join([main, *map(digest12, variants)]) for main, variants in beside.items())
        what = "Plans with those of other variants of applications that came with them, after colons."
        outputs["Variants"] = {"Description": what, "Value": ",".join(lists)}
    return outputs


def dump(template: Part) -> str:
    written: str = yaml.dump(template, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return _HEAD + written.removesuffix("...\n")  # libyaml ends some documents so


class _Dumper(SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - PyYAML's
        return True


def _text(dumper: SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _variables(options: Options) -> dict[str, Any]:
    variables: dict[str, Any] = {
        "architecture": options.architecture,
        "cache_engine": options.store.partition("-")[0],
        "cache_users": [{"Ref": user} for user in ("CacheUser", *(["NobodyUser"] if options.store == "redis" else []))],
        "cache_version": _CACHE_VERSIONS.get(options.store),
        "engine": options.engine,
        "environment": "@environment@",  # when it is known
        "instance": _INSTANCES[options.architecture],
        "machine": options.architecture,
        **_ping_variables(options),
        **_registry_variables(options),
        "results_days": options.results_days,
        "results_ttl_s": str((options.results_days or 0) * DAY_S),
        "runtime": options.runtime,
        "version": __version__,
        "zone": options.zone,
    }
    return {**variables, "user_data": fragments.script("user-data.sh", variables)}


def _ping_variables(options: Options) -> Part:
    if options.pings is None:
        return {}
    minutes = options.pings.minutes
    return {
        "ping_rate": f"rate({minutes} minute{'s' * (minutes > 1)})",
        "ping": json.dumps(ping_event(options.pings.queries)),
    }


def _registry_variables(options: Options) -> Part:
    if (served := options.applications) is None:
        return {}
    bucket, _, prefix = served.place.partition("/")
    folders = [f"{prefix}/documents/{document_name(name)}/".lstrip("/") for name in served.names]
    return {
        "applications": ",".join(served.names),
        "registry": served.place,
        "registry_actions": ["s3:GetObject", "s3:PutObject"] if options.drivers == "fleet" else "s3:GetObject",
        "registry_bucket": bucket,
        "registry_documents": [{"Fn::Sub": f"arn:${{AWS::Partition}}:s3:::{bucket}/{path}*"} for path in folders],
        "registry_prefixes": folders,
    }


def _chosen(options: Options, *, fetches: bool, driver_runs: bool, invokes: bool) -> list[str]:
    fleet, cache = options.drivers == "fleet", options.cache_in_vpc
    machine, keeps = options.by_state_machine, options.results_days is not None
    to_s3 = keeps or options.applications is not None
    kind = "express" if options.engine == "stepfunctions-express" else "standard"
    parts = {
        "base": True,
        "workers": invokes,
        "network": options.in_vpc,
        "weights": fetches,
        "weights-network": fetches and cache,
        "workers-to-s3": (fetches or keeps) and cache,
        "drivers-to-s3": to_s3 and cache and not fleet,
        "endpoint-s3": fleet or ((fetches or to_s3) and cache),
        "store-s3": options.store == "s3" and invokes,
        "store-s3-clean-up": options.store == "s3" and machine,
        "store-s3express": options.store == "s3express" and invokes,
        "endpoint-s3express": options.store == "s3express" and fleet,
        "store-cache": options.in_cache,
        "store-cache-network": cache,
        "store-redis": options.store == "redis",
        "results": keeps,
        "applications": options.applications is not None,
        "machine": machine,
        f"endpoint-machine-{kind}": machine and options.in_vpc,
        "driver-function": not fleet,
        "driver-runs": driver_runs,
        "driver-fleet": fleet,
        "alarms": True,
        "alarms-workers": invokes,
        "pings": options.pings is not None,
        "alarms-function": not fleet,
        "alarms-fleet": fleet,
        "alarms-cache": options.in_cache,
    }
    return [name for name, chosen in parts.items() if chosen]


def _served(values: Sequence[Any]) -> Part:
    """Return the value of the plan that is served, out of one for each plan; the first is the previous one too."""
    return {"Fn::If": ["ServesPrevious", values[-1], values[0]]}


def _run_in_driver(
    plans: Sequence[Plan], memories: Mapping[str, int], resources: Part, environment: Mapping[str, Any]
) -> Part:
    """Let the driver function run plans itself, those whose digests, of twelve digits, `memories` has.

    Changes its memory, layers and order among `resources`; returns the variables that it gets in place of those in
    `environment`, and what its role may do besides.
    """
    digests = [digest12(plan) for plan in plans]
    own = [digest in memories for digest in digests]
    driver = resources["DriverFunction"]
    properties, usual = driver["Properties"], driver["Properties"]["MemorySize"]
    properties["MemorySize"] = _either([memories.get(digest, usual) for digest in digests])
    properties["Layers"] = [
        *properties["Layers"],
        _either([{"Ref": "RunnerLayer"} if runs else _NOTHING for runs in own]),
        _either([{"Ref": weights_id(digest, 0, 0)} if digest in memories else _NOTHING for digest in digests]),
    ]
    weights = fetched(plan for plan, runs in zip(plans, own, strict=True) if runs)
    variables = {
        "SERFER_WORKERS": _either(["inprocess" if runs else "aws" for runs in own]),
        "SERFER_STORE": _either([MEMORY if runs else environment["SERFER_STORE"] for runs in own]),
    }
    statements = []
    if weights:
        variables["SERFER_WEIGHTS"] = {"Fn::Sub": URL}
        driver["DependsOn"] = sorted({*map(uploaded_id, weights)})  # it is not there before its weights are
        statements = [
            allow("Weights", "s3:GetObject", {"Fn::Sub": "${WeightsBucket.Arn}/weights/*"}),
            allow("WeightsMissing", "s3:ListBucket", {"Fn::GetAtt": ["WeightsBucket", "Arn"]}),
        ]
    return {"DriverEnvironment": variables, "Statements": {"DriverRole": statements}}


def _either(values: Sequence[Any]) -> Any:  # noqa: ANN401 - intrinsics
    return values[0] if all(value == values[0] for value in values) else _served(values)


def _serving(digests: Sequence[str], options: Options, pooled: Collection[str], spot: Collection[str]) -> Part:
    known = {"allowed": [CURRENT, *digests], "current": digests[0], "previous": digests[-1], "engine": options.engine}
    part = fragments.load("serving", known)
    variables, outputs = part["DriverEnvironment"], part["Outputs"]
    if options.gpu:
        kind = options.gpu.instance_type
        routes = [_routing(digest, kind, pooled=digest in pooled, spot=digest in spot) for digest in digests]
        variables |= {name: _served([route[name] for route in routes]) for name in routes[0]}
    if options.by_alias:
        variables["SERFER_FUNCTION_ALIAS"] = LIVE
        outputs["Alias"] = {"Description": "The alias by which functions are invoked.", "Value": LIVE}
    if options.provisioned_concurrency is not None:
        variables["SERFER_PREWARM"] = "never"  # there is nothing to start
    if options.by_state_machine:
        machine = _served([{"Ref": machine_id(digest)} for digest in digests])
        variables["SERFER_STATE_MACHINE"] = machine
        outputs["StateMachine"] = {"Description": "The state machine of the plan that drivers use.", "Value": machine}
    return part


def _place(resources: Part, statements: Part, options: Options) -> None:
    if "Cache" in resources:
        cache = vpc("CacheGroup") if options.cache_in_vpc else {"ConnectionType": "public"}
        resources["Cache"]["Properties"] |= cache
    if not options.cache_in_vpc:
        return
    groups = {"WorkerRole": "WorkersGroup"}
    if options.drivers == "function":
        resources["DriverFunction"]["Properties"]["VpcConfig"] = vpc("DriversGroup")
        groups["DriverRole"] = "DriversGroup"
    for role, group in groups.items():
        statements[role] += fragments.load("network-role", {"role": role, "group": group})["Statements"][role]


def _provision(resources: Part, plans: Sequence[Plan], options: Options) -> None:
    if options.provisioned_concurrency is None:
        return
    for plan in plans:
        for part, count in environments(plan, options.provisioned_concurrency).items():
            kept = {"ProvisionedConcurrentExecutions": count}
            chosen = _either([kept if other is plan else _NOTHING for other in plans])
            resources[function_id(digest12(plan), *part)]["Properties"]["ProvisionedConcurrencyConfig"] = chosen


def _set_environment(resources: Part, environment: Mapping[str, Any]) -> None:
    """Give drivers their environment: a function's variables, or a file of an instance."""
    if "DriverFunction" in resources:
        resources["DriverFunction"]["Properties"]["Environment"]["Variables"].update(environment)
        return
    lines = [{"Fn::Join": ["", [f"{name}=", value]]} for name, value in environment.items()]
    data = resources["DriverTemplate"]["Properties"]["LaunchTemplateData"]
    data["UserData"] = fragments.render(data["UserData"], {"environment": {"Fn::Join": ["\n", lines]}})


def _pools(options: Options, pool: GpuPool, plans: Sequence[Plan], spot: Collection[str]) -> list[Part]:
    known = {"gpu_most": pool.most, "architecture": options.architecture, "runtime": options.runtime}
    shared = [fragments.load(name, known) for name in ("gpu", *(["gpu-weights"] if fetched(plans) else []))]
    groups = [part for plan in plans for part in _group(plan, options, pool)]
    for plan in plans:
        if digest12(plan) in spot:
            groups += _of_spot(_group(plan, options, replace(pool, warm=0), spot=True))
    return [*shared, *groups]


def _routing(digest: str, kind: str, *, pooled: bool, spot: bool) -> Part:
    """Return the variables that tell a driver of a plan's pool of a type of instance, or that it has none."""
    if not pooled:
        return {"SERFER_ROUTE": "serverless", "SERFER_INSTANCES": "", "SERFER_SCENARIO_FILE": ""}
    group = f"ec2:{pool_name(digest)}"
    groups = f"{kind}={group},{kind}/spot=ec2:{pool_name(digest, spot=True)}" if spot else group
    return {
        "SERFER_ROUTE": "mark-spot" if spot else "auto",
        "SERFER_INSTANCES": {"Fn::Sub": groups},
        "SERFER_SCENARIO_FILE": f"plans/{digest}/{SCENARIO}",
    }


def _group(plan: Plan, options: Options, pool: GpuPool, *, spot: bool = False) -> list[Part]:
    digest = digest12(plan)
    name = f"{digest}Spot" if spot else digest
    layers = [{"Ref": weights_id(digest, *part)} for part in plan.functions]
    variables: dict[str, Any] = {
        "digest": digest,
        "gpu_id": name,
        "gpu_group": pool_name(digest, spot=spot),
        "gpu_type": pool.instance_type,
        "gpu_warm": pool.warm,
        "runtime": options.runtime,
        "weights": {"Fn::Join": [" ", layers]},
        "weights_layers": layers,
    }
    outside = [file for part in plan.functions for file in plan.fetched(*part)]
    weights = "\n".join(dict.fromkeys(f"{file.sha256} {file.path}" for file in outside))
    reading = fragments.script("user-data-weights.sh", {"digest": digest, "files": weights}) if outside else ""
    variables["gpu_user_data"] = fragments.script("user-data-gpu.sh", {**variables, "fetched": reading.rstrip()})
    parts = [fragments.load(name, variables) for name in ("gpu-pool", *(["gpu-warm-pool"] if pool.warm else []))]
    parts[0]["Resources"][f"GpuGroup{name}"]["DependsOn"] += sorted({*map(uploaded_id, outside)})
    return parts


def _of_spot(parts: list[Part]) -> list[Part]:
    """Return a group's parts with its instances bought as spot instances.

    The group replaces an instance that EC2 recommends to give up, or gives notice of, and leaves it a minute to drain,
    in which drivers see it as Terminating:Wait.
    """
    for resource in parts[0]["Resources"].values():
        properties = resource["Properties"]
        if resource["Type"] == "AWS::EC2::LaunchTemplate":
            properties["LaunchTemplateData"]["InstanceMarketOptions"] = {"MarketType": "spot"}
        else:
            properties["CapacityRebalance"] = True
            properties["LifecycleHookSpecificationList"].append(dict(_DRAINING))
    return parts
