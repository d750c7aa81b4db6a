"""The IAM policies of the principal that deploys: what the types of its stacks' resources need, and on which ARNs.

Names that AWS makes up (APIs, networks, machines) are not known beforehand: those statements name no resource, and
their actions are confined by region.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serfer.core.dataclass_codec import structure
from serfer.sam.data import read_table
from serfer.sam.stacks import repositories
from serfer.sam.teardown import REPOSITORY

_NAMED = {
    "cloudformation": (
        "arn:{p}:cloudformation:{r}:{a}:stack/{s}/*",
        "arn:{p}:cloudformation:{r}:{a}:stack/aws-sam-cli-managed-default/*",
        "arn:{p}:cloudformation:{r}:aws:transform/*",
    ),
    "iam": ("arn:{p}:iam::{a}:role/{s}-*", "arn:{p}:iam::{a}:instance-profile/{s}-*"),
    "lambda": ("arn:{p}:lambda:{r}:{a}:function:{s}-*", "arn:{p}:lambda:{r}:{a}:layer:{s}-*"),
    "states": ("arn:{p}:states:{r}:{a}:stateMachine:{s}-*",),
    "logs": ("arn:{p}:logs:{r}:{a}:log-group:/serfer/{s}/*",),
    "events": ("arn:{p}:events:{r}:{a}:rule/{s}-*",),
    "sns": ("arn:{p}:sns:{r}:{a}:{s}-*",),
    "cloudwatch": ("arn:{p}:cloudwatch:{r}:{a}:alarm:{s}-*",),
    "budgets": ("arn:{p}:budgets::{a}:budget/{s}-*",),
    "ecr": ("arn:{p}:ecr:{r}:{a}:repository/{e}*",),
    "s3": ("arn:{p}:s3:::{s}-*", "arn:{p}:s3:::{s}-*/*", "arn:{p}:s3:::aws-sam-cli-*", "arn:{p}:s3:::aws-sam-cli-*/*"),
}
_COMPANION = "arn:{p}:cloudformation:{r}:{a}:stack/{s}-*-CompanionStack/*"
"""The stack in which SAM CLI keeps the repositories of container images."""
_UNNAMED = frozenset(
    {
        "cloudformation:GetTemplateSummary",
        "cloudwatch:DescribeAlarms",
        "ecr:GetAuthorizationToken",
        "events:ListRules",
        "logs:DescribeLogGroups",
        "logs:DescribeResourcePolicies",
        "states:ValidateStateMachineDefinition",
    }
)
"""Actions that know no resource of the stack, though others of their service do."""

_ACCOUNT_DIGITS = 12
_MOST_CHARACTERS = 6_144  # of a managed policy, of which a role may have ten; its inline ones have 10,240 together
_PASS, _LINK = "iam:PassRole", "iam:CreateServiceLinkedRole"
_UNBOUND = "iam:DeleteRolePermissionsBoundary"
_BOUND = frozenset(
    {"iam:CreateRole", "iam:DeleteRolePolicy", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy", _UNBOUND}
)
"""Actions on roles that IAM can restrict to roles with a given permissions boundary."""
_ASSUMED_BY = {
    "AWS::IAM::InstanceProfile": "ec2.amazonaws.com",
    "AWS::Serverless::Function": "lambda.amazonaws.com",
    "AWS::Serverless::StateMachine": "states.amazonaws.com",
}
"""The service that a stack's roles are passed to, by the type of the resource that has the role."""
_LINKED = {
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling.amazonaws.com",
    "AWS::ElastiCache::ServerlessCache": "elasticache.amazonaws.com",
    "AWS::ElasticLoadBalancingV2::LoadBalancer": "elasticloadbalancing.amazonaws.com",
}
"""The services that make a role of their own in an account that has none yet."""


@dataclass(frozen=True)
class _Actions:
    """Actions that every deployment takes, and those by resource type, or by a beginning of types that ends in "::"."""

    base: tuple[str, ...]
    types: Mapping[str, tuple[str, ...]]


ACTIONS = structure(_Actions, read_table("deployer_actions"), "deployer_actions.toml")


@dataclass(frozen=True)
class Target:
    """Stacks that are deployed to the regions of an account, whose number is `account`.

    `boundaries` are the ARNs of the permissions boundaries that all roles of these stacks get; empty where some role
    gets none.
    """

    stacks: Sequence[str]
    regions: Sequence[str]
    account: str
    partition: str = "aws"
    boundaries: Sequence[str] = ()

    def arns(self, pattern: str) -> list[str]:
        """Return a pattern's ARNs, one for each stack and region that it names."""
        arns = (
            pattern.format(p=self.partition, r=region, a=self.account, s=stack, e=repositories(stack))
            for stack in self.stacks
            for region in self.regions
        )
        return list(dict.fromkeys(arns))


def actions(types: Iterable[str]) -> list[str]:
    """Return what deploying, updating and removing resources of these types takes; raises KeyError for unknown ones."""
    return sorted({*ACTIONS.base, *(action for kind in set(types) for action in needed(kind))})


def needed(kind: str) -> tuple[str, ...]:
    """Return the actions that one type of resource takes; raises KeyError for an unknown one."""
    if kind in ACTIONS.types:
        return ACTIONS.types[kind]
    family = kind[: kind.rindex("::") + 2]
    return ACTIONS.types[family]


def unlisted(types: Iterable[str]) -> list[str]:
    return sorted({kind for kind in types if not {kind, kind[: kind.rindex("::") + 2]} & ACTIONS.types.keys()})


def statements(types: Collection[str], target: Target) -> list[dict[str, Any]]:
    services: dict[str, list[str]] = {}
    for action in actions(types):
        services.setdefault(_statement_of(action, target), []).append(action)
    return [_statement(name, allowed, types, target) for name, allowed in sorted(services.items())]


def policies(types: Collection[str], target: Target) -> list[dict[str, Any]]:
    """Return the same statements as policy documents, each short enough for a managed policy.

    The account may be a placeholder: lengths are those with a number in its place.
    """
    documents: list[dict[str, Any]] = []
    sized: list[dict[str, Any]] = []
    real = statements(types, replace(target, account="0" * _ACCOUNT_DIGITS))
    for statement, measured in zip(statements(types, target), real, strict=True):
        if not documents or _characters([*sized, measured]) > _MOST_CHARACTERS:
            documents.append({"Version": "2012-10-17", "Statement": []})
            sized = []
        documents[-1]["Statement"].append(statement)
        sized.append(measured)
    return documents


def _characters(allowed: Sequence[dict[str, Any]]) -> int:
    """Return how long a document with these statements is, as IAM counts it: without blanks."""
    return len(json.dumps({"Version": "2012-10-17", "Statement": allowed}, separators=(",", ":")))


def _statement_of(action: str, target: Target) -> str:
    """Return the name of the statement that an action belongs to: its service, or one with conditions of its own."""
    if action in _UNNAMED:
        return "unnamed"
    if action == _PASS:
        return "iamPass"
    if action == _LINK:
        return "iamLinked"
    if action in _BOUND and target.boundaries:
        return "iamBounded"
    return action.partition(":")[0]


def _statement(name: str, allowed: list[str], types: Collection[str], target: Target) -> dict[str, Any]:
    statement: dict[str, Any] = {"Sid": name[0].upper() + name[1:], "Effect": "Allow", "Action": allowed}
    roles = target.arns(_NAMED["iam"][0])
    if name == "iamPass":
        return {**statement, "Resource": roles, "Condition": _equals("iam:PassedToService", _of(_ASSUMED_BY, types))}
    if name == "iamLinked":
        return {**statement, "Resource": "*", "Condition": _equals("iam:AWSServiceName", _of(_LINKED, types))}
    if name == "iamBounded":
        bounded = [action for action in allowed if action != _UNBOUND]  # which would lift the boundary
        return {
            **statement,
            "Action": bounded,
            "Resource": roles,
            "Condition": _equals("iam:PermissionsBoundary", target.boundaries),
        }
    if name in _NAMED:
        more = (_COMPANION,) if name == "cloudformation" and REPOSITORY in types else ()
        return {**statement, "Resource": sorted({arn for each in (*_NAMED[name], *more) for arn in target.arns(each)})}
    if name == "unnamed":
        return {**statement, "Resource": "*"}
    return {**statement, "Resource": "*", "Condition": _equals("aws:RequestedRegion", target.regions)}


def _equals(key: str, values: Sequence[str]) -> dict[str, Any]:
    return {"StringEquals": {key: values[0] if len(values) == 1 else sorted(values)}}


def _of(services: dict[str, str], types: Collection[str]) -> list[str]:
    return sorted({service for kind, service in services.items() if kind in types})
