"""Hand-written parts of a template, sam/template/parts/*.yaml: read, rendered and merged.

Beside a template's own sections a part may have
    Statements: {RoleOrEndpoint: [statement, ...]}      what is appended to that resource's policy, if it is there
    Environment: {NAME: value}                          variables of stage functions and drivers
    DriverEnvironment: {NAME: value}                    variables of drivers alone
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as SafeLoader  # eight times as fast, where PyYAML was built with libyaml
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

from serfer.core.errors import PlanError
from serfer.sam.template import text

Part = dict[str, Any]
_WORD = re.compile(r"@([a-z_]+)@")
_PLAIN = ("Ref", "Condition")
MOST_POLICY_CHARACTERS = 10_240
_ARN_CHARACTERS = 115
"""The widest value of an intrinsic function: the ARN of a function with its alias, in any region."""


class _Loader(SafeLoader):
    """Reads CloudFormation's short forms, `!Ref Name`, as the long ones."""


def _intrinsic(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)  # noqa: S101 - there is no other kind
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in _PLAIN else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _intrinsic)


def parse(source: str) -> Part:
    """Read YAML with CloudFormation's short forms; intrinsic functions come out in their long form."""
    part: Part = yaml.load(source, Loader=_Loader)  # noqa: S506 - a SafeLoader with CloudFormation's tags
    return part


def load(name: str, variables: Mapping[str, Any]) -> Part:
    """Return a part with its variables filled in: `@name@` in a string, or in place of the whole string."""
    part: Part = render(_parsed(name), variables)
    return part


@functools.cache
def _parsed(name: str) -> Part:
    return parse(text(f"{name}.yaml"))


def render(value: Any, variables: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any YAML value
    """Return a copy of a value with its variables filled in; raises KeyError for an unknown one."""
    if isinstance(value, dict):
        return {render(key, variables): render(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, variables) for item in value]
    if not isinstance(value, str):
        return value
    if whole := _WORD.fullmatch(value):
        return variables[whole[1]]
    return _WORD.sub(lambda match: str(variables[match[1]]), value)


def script(name: str, variables: Mapping[str, Any]) -> str:
    """Return what an instance runs when it starts, with its variables filled in.

    `@fetch@` defines how it fetches its code, `@logs@` what becomes of its log.
    """
    shared = {part: text(f"user-data-{part}.sh").rstrip() for part in ("fetch", "logs")}
    filled: str = render(text(name), {**variables, **shared})
    return filled


def merge(parts: Iterable[Part]) -> Part:
    """Return all parts as one; what stands under one name in two of them is a mistake and raises ValueError."""
    whole: Part = {"Statements": {}}
    for part in parts:
        for section, entries in part.items():
            if section == "Statements":
                for target, statements in entries.items():
                    whole[section].setdefault(target, []).extend(statements)
                continue
            there = whole.setdefault(section, {})
            if both := there.keys() & entries.keys():
                raise ValueError(f"{section} has {', '.join(sorted(both))} twice")
            there.update(entries)
    return whole


def allow(sid: str, action: str | list[str], resource: Any, **more: Any) -> Part:  # noqa: ANN401 - intrinsics
    return {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": resource, **more}


def attach(resources: Mapping[str, Any], statements: Mapping[str, Sequence[Part]]) -> None:
    """Append statements to the policies of the roles and endpoints that they are for, where these are there."""
    for name, added in statements.items():
        if name not in resources:
            continue
        properties = resources[name]["Properties"]
        if "Policies" not in properties:
            properties["PolicyDocument"]["Statement"].extend(added)
            continue
        document = properties["Policies"][0]["PolicyDocument"]
        document["Statement"].extend(added)
        if _characters(document) > MOST_POLICY_CHARACTERS:
            raise PlanError(
                f"the plan has so many functions that the policy of {name} would exceed IAM's "
                f"{MOST_POLICY_CHARACTERS:,} characters: split the model into fewer stages (--stages)"
            )


def _characters(document: Any) -> int:  # noqa: ANN401 - any JSON value
    if isinstance(document, dict):
        if len(document) == 1 and next(iter(document)).startswith(("Fn::", "Ref")):
            return _ARN_CHARACTERS + 3
        return 2 + sum(len(key) + 4 + _characters(value) for key, value in document.items())
    if isinstance(document, list):
        return 2 + sum(_characters(value) + 1 for value in document)
    return len(json.dumps(document))
