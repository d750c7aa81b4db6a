"""The IAM policies of the principal that deploys: what the types of its stacks' resources need, and on which ARNs.

Names that AWS makes up (APIs, networks, machines) are not known beforehand: those statements name no resource, and
their actions are confined by region.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serfer.core.dataclass_codec import structure
from serfer.sam.stacks import repositories
from serfer.sam.teardown import REPOSITORY
from serfer.sam.template import text

_ACCOUNT_DIGITS = 12
_MOST_CHARACTERS = 6_144  # of a managed policy, of which a role may have ten; its inline ones have 10,240 together
_PASS, _LINK = "iam:PassRole", "iam:CreateServiceLinkedRole"
_UNBOUND = "iam:DeleteRolePermissionsBoundary"
_BOUND = frozenset(
    {"iam:CreateRole", "iam:DeleteRolePolicy", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy", _UNBOUND}
)
"""Actions on roles that IAM can restrict to roles with a given permissions boundary."""


@dataclass(frozen=True)
class _Actions:
    """Actions that every deployment takes, and those by resource type, or by a beginning of types that ends in "::".

    `named` are the ARNs of a service's statement, `unnamed` the actions that know no resource of the stack, though
    others of their service do; `passed_to` and `linked` services by the type of resource that has a role.
    """

    base: tuple[str, ...]
    unnamed: tuple[str, ...]
    companion: str
    types: Mapping[str, tuple[str, ...]]
    named: Mapping[str, tuple[str, ...]]
    passed_to: Mapping[str, str]
    linked: Mapping[str, str]


ACTIONS = structure(_Actions, tomllib.loads(text("deployer_actions.toml")), "deployer_actions.toml")


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
    return ACTIONS.types[kind if kind in ACTIONS.types else kind[: kind.rindex("::") + 2]]


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
    return len(json.dumps({"Version": "2012-10-17", "Statement": allowed}, separators=(",", ":")))


def _statement_of(action: str, target: Target) -> str:
    """Return the name of the statement that an action belongs to: its service, or one with conditions of its own."""
    if action in ACTIONS.unnamed:
        return "unnamed"
    if action == _PASS:
        return "iamPass"
    if action == _LINK:
        return "iamLinked"
    if action in _BOUND and target.boundaries:
        return "iamBounded"
    return action.partition(":")[0]


def _statement(name: str, allowed: list[str], types: Collection[str], target: Target) -> dict[str, Any]:
    resources: str | list[str] = "*"
    condition: dict[str, Any] = {}
    roles = target.arns(ACTIONS.named["iam"][0])
    if name == "iamPass":
        resources, condition = roles, _equals("iam:PassedToService", _of(ACTIONS.passed_to, types))
    elif name == "iamLinked":
        condition = _equals("iam:AWSServiceName", _of(ACTIONS.linked, types))
    elif name == "iamBounded":
        allowed = [action for action in allowed if action != _UNBOUND]  # which would lift the boundary
        resources, condition = roles, _equals("iam:PermissionsBoundary", target.boundaries)
    elif name in ACTIONS.named:
        more = (ACTIONS.companion,) if name == "cloudformation" and REPOSITORY in types else ()
        resources = sorted({arn for pattern in (*ACTIONS.named[name], *more) for arn in target.arns(pattern)})
    elif name != "unnamed":
        condition = _equals("aws:RequestedRegion", target.regions)
    statement = {"Sid": name[0].upper() + name[1:], "Effect": "Allow", "Action": allowed, "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def _equals(key: str, values: Sequence[str]) -> dict[str, Any]:
    return {"StringEquals": {key: values[0] if len(values) == 1 else sorted(values)}}


def _of(services: Mapping[str, str], types: Collection[str]) -> list[str]:
    return sorted({service for kind, service in services.items() if kind in types})
