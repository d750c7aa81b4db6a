"""Fixed monthly costs: what a deployment has that bills by the hour or by the month, whether queries come or not.

Nothing is listed twice: the resources are those of the template itself. A test holds every template that SerFer writes
against the types that are priced here and those that cost nothing by themselves (tests/data/free_types.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serfer.control.bill_lines import Line, add_up
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import HOURS_A_MONTH
from serfer.core.errors import InputError
from serfer.core.units import MB_PER_GB
from serfer.sam.template.intrinsics import Properties, resources
from serfer.sam.weights import RESOURCE_TYPE as WEIGHTS

SECONDS_A_MONTH = HOURS_A_MONTH * 3600
_BYTES_PER_GB = 1e9
_ZONES = 2  # of an endpoint or a balancer whose subnets are not known
_ROOT_GB = 8  # of an Amazon Linux image whose disk size was not chosen


@dataclass(frozen=True)
class _Stack:
    resources: Mapping[str, tuple[str, Properties]]
    facts: AwsFacts

    def service(self, name: str, item: str, quantity: float, unit: str) -> Line:
        return Line.priced(self.facts, item, quantity, unit, f"services.{name}")


def fixed_costs(
    template: Mapping[str, Any], facts: AwsFacts, parameters: Mapping[str, Any] | None = None, region: str = "us-east-1"
) -> list[Line]:
    """Price what a template's resources cost a month in which no query comes, equal items together.

    Parameters are the template's defaults unless given. Raises InputError for an instance type without a price.
    """
    stack = _Stack(resources(template, parameters, region), facts)
    lines = (
        line
        for kind, properties in stack.resources.values()
        if kind in PRICED
        for line in PRICED[kind](stack, properties)
    )
    return sorted(add_up(lines), key=lambda line: -line.usd)


def _function(stack: _Stack, properties: Properties) -> list[Line]:
    """Price a function's provisioned environments, or snapshot; otherwise it costs nothing while it is not called."""
    kept = int((properties.get("ProvisionedConcurrencyConfig") or {}).get("ProvisionedConcurrentExecutions", 0))
    if kept:
        price = f"price_provisioned{'_arm' if properties.get('Architectures') == ['arm64'] else ''}"
        quantity = kept * float(properties.get("MemorySize", 128)) / MB_PER_GB * SECONDS_A_MONTH
        return [Line.priced(stack.facts, "provisioned concurrency", quantity, "GB-s", f"lambda.{price}")]
    if (properties.get("SnapStart") or {}).get("ApplyOn") != "PublishedVersions":
        return []
    quantity = float(properties.get("MemorySize", 128)) / MB_PER_GB * SECONDS_A_MONTH
    return [Line.priced(stack.facts, "SnapStart snapshots", quantity, "GB-s", "lambda.price_snapstart_cached")]


def _balancer(stack: _Stack, properties: Properties) -> list[Line]:
    lines = [stack.service("price_balancer_hour", "load balancer", HOURS_A_MONTH, "hours")]
    if properties.get("Scheme", "internet-facing") == "internet-facing":
        hours = HOURS_A_MONTH * _length(properties.get("Subnets"))
        lines.append(stack.service("price_ipv4_hour", "public IPv4 addresses", hours, "hours"))
    return lines


def _machines(stack: _Stack, properties: Properties) -> list[Line]:
    count = int(properties.get("MinSize", 0))
    if not count:  # a pool, which is empty while there is no load
        return []
    launched = _launched(stack, properties)
    kind = str(launched.get("InstanceType"))
    if kind not in stack.facts.instances:
        raise InputError(f"SERFER_AWS_FILE: instances has no price for {kind!r}: add USD per hour, or choose another")
    hours, gigabytes = count * HOURS_A_MONTH, _disk_gb(launched)
    return [
        Line.priced(stack.facts, f"drivers, {kind}", hours, "hours", f"instances.{kind}"),
        stack.service("price_disk_gb", "drivers' disks", count * gigabytes, "GB"),
    ]


def _disk_gb(launched: Properties) -> float:
    disks = [mapping["Ebs"] for mapping in launched.get("BlockDeviceMappings", []) if "Ebs" in mapping]
    return sum(float(disk.get("VolumeSize", _ROOT_GB)) for disk in disks) or _ROOT_GB


def _warm_pool(stack: _Stack, properties: Properties) -> list[Line]:
    name = (properties.get("AutoScalingGroupName") or {}).get("Ref")
    _, group = stack.resources.get(str(name), ("", {}))
    gigabytes = int(properties.get("MaxGroupPreparedCapacity", 0)) * _disk_gb(_launched(stack, group))
    return [stack.service("price_disk_gb", "disks of the GPU pool's stopped instances", gigabytes, "GB")]


def _launched(stack: _Stack, group: Properties) -> Properties:
    template = (group.get("LaunchTemplate") or {}).get("LaunchTemplateId") or {}
    name = template.get("Ref") if isinstance(template, dict) else None
    _, properties = stack.resources.get(str(name), ("", {}))
    data: Properties = properties.get("LaunchTemplateData", {})
    return data


def _endpoint(stack: _Stack, properties: Properties) -> list[Line]:
    if properties.get("VpcEndpointType", "Gateway") != "Interface":
        return []
    hours = HOURS_A_MONTH * _length(properties.get("SubnetIds"))
    return [stack.service("price_endpoint_hour", "interface endpoints", hours, "hours")]


def _cache(stack: _Stack, properties: Properties) -> list[Line]:
    engine = properties.get("Engine")
    table = "valkey" if engine == "valkey" else "redis_serverless"
    return [Line.priced(stack.facts, f"cache, {engine}", HOURS_A_MONTH, "hours", f"{table}.price_hour")]


def _acl(stack: _Stack, properties: Properties) -> list[Line]:
    rules = len(properties.get("Rules", []))
    return [
        stack.service("price_acl", "web ACL", 1, "web ACLs"),
        *([stack.service("price_acl_rule", "web ACL rules", rules, "rules")] if rules else []),
    ]


def _alarm(stack: _Stack, properties: Properties) -> list[Line]:
    metrics = sum("MetricStat" in metric for metric in properties.get("Metrics", [])) or 1
    return [stack.service("price_alarm", "alarms", metrics, "metrics")]


def _weights(stack: _Stack, properties: Properties) -> list[Line]:
    if properties.get("Piece") != properties.get("Pieces"):
        return []
    gigabytes = float(properties.get("Bytes", 0)) / _BYTES_PER_GB
    return [stack.service("price_s3_gb", "weights in S3", gigabytes, "GB")]


def _each(name: str, item: str, unit: str) -> Callable[[_Stack, Properties], list[Line]]:
    return lambda stack, _properties: [stack.service(name, item, 1, unit)]


PRICED: dict[str, Callable[[_Stack, Properties], list[Line]]] = {
    "AWS::AutoScaling::AutoScalingGroup": _machines,
    "AWS::AutoScaling::WarmPool": _warm_pool,
    "AWS::Budgets::Budget": _each("price_budget", "budgets", "budgets"),
    "AWS::CloudWatch::Alarm": _alarm,
    "AWS::CloudWatch::Dashboard": _each("price_dashboard", "dashboards", "dashboards"),
    "AWS::EC2::VPCEndpoint": _endpoint,
    "AWS::ElastiCache::ServerlessCache": _cache,
    "AWS::ElasticLoadBalancingV2::LoadBalancer": _balancer,
    "AWS::KMS::Key": _each("price_key", "KMS keys", "keys"),
    "AWS::Logs::MetricFilter": _each("price_metric", "custom metrics", "metrics"),
    "AWS::Serverless::Function": _function,
    "AWS::WAFv2::WebACL": _acl,
    WEIGHTS: _weights,
}


def _length(value: Any) -> int:  # noqa: ANN401 - a list, or what only AWS knows
    return len(value) if isinstance(value, list) else _ZONES
