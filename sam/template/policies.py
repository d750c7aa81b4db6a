"""Statements of policies that depend on the plan, and where statements go.

Roles and their other statements are written by hand in parts/. A role's policy stands in the role itself, which IAM
limits to 10,240 characters without blanks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from serfer.core.errors import PlanError

MOST_POLICY_CHARACTERS = 10_240
_ARN_CHARACTERS = 115
"""The widest value of an intrinsic function: the ARN of a function with its alias, in any region."""

Statement = dict[str, Any]


def allow(sid: str, action: str | list[str], resource: Any, **more: Any) -> Statement:  # noqa: ANN401 - intrinsics
    return {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": resource, **more}


def attach(resources: Mapping[str, Any], statements: Mapping[str, Sequence[Statement]]) -> None:
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
