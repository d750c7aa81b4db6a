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
_ENI = "arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:"

Statement = dict[str, Any]


def allow(sid: str, action: str | list[str], resource: Any, **more: Any) -> Statement:  # noqa: ANN401 - intrinsics
    return {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": resource, **more}


def network_statements(group: str) -> list[Statement]:
    """Return what Lambda needs of a role to put its function into the network, in security group `group`.

    The function's own code could do the same with the role's credentials; it is kept from that by the last statement
    (AWS's developer guide, "Giving Lambda functions access to resources in an Amazon VPC").
    """
    made = [
        {"Fn::Sub": f"{_ENI}network-interface/*"},
        *({"Fn::Sub": f"{_ENI}subnet/${{{subnet}}}"} for subnet in ("PrivateSubnetA", "PrivateSubnetB")),
        {"Fn::Sub": f"{_ENI}security-group/${{{group}}}"},
    ]
    kept = ["ec2:DeleteNetworkInterface", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"]
    seen = ["ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"]
    return [
        allow("NetworkMake", "ec2:CreateNetworkInterface", made),
        allow("NetworkKeep", kept, {"Fn::Sub": f"{_ENI}*/*"}),  # the guide says so: nothing narrower works
        allow("NetworkSee", seen, "*"),  # these know no resource
        {
            "Sid": "NetworkByLambdaOnly",
            "Effect": "Deny",
            "Action": ["ec2:CreateNetworkInterface", *kept, *seen],
            "Resource": "*",
            "Condition": {"Null": {"lambda:SourceFunctionArn": "false"}},
        },
    ]


def attach(resources: Mapping[str, Any], statements: Mapping[str, Sequence[Statement]]) -> None:
    """Append statements to the policies of the roles and endpoints that they are for, where these are there.

    Raises PlanError where a role's policy becomes longer than IAM takes.
    """
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
