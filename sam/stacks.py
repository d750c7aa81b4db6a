"""Deployed stacks: the plan they serve, which deployments may update them, and roll-back.

A stack's outputs name the plans whose functions it has, the template's current one first, and the one that its drivers
use. They, and not a BUILD directory, say what an update would delete: stacks of several environments are deployed from
one BUILD, and one stack from several.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError, WaiterError

from serfer.core.errors import UnavailableError, UsageError
from serfer.sam.deployment import Deployment
from serfer.sam.options import function_id, weights_id

TAG = "serfer:stack"
OUTPUTS = frozenset({"FunctionPrefix", "Store"})
"""What samconfig.toml gives a stack, and what its template says of it: others' stacks are left alone."""
_STORE = re.compile(r"\bstore ([\w-]+), drivers \w+$")  # in the template's description
_BEGINNINGS = frozenset({"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS"})
_SERVING = "Serving"
_HASHED = 10  # characters that SAM adds to the logical ids of layers
_WAIT_S, _WAITS = 5, 720
_CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]


@dataclass(frozen=True)
class DeployedStack:
    """A stack as CloudFormation describes it; `serving` and `plans` are empty where its creation failed.

    `plans` are those that drivers may use, the current one first, with their `cold` plans and those of other variants
    that came with them; a driver function runs `driver_runs` itself; `weights` is the URL of what functions fetch,
    empty where they fetch nothing.
    """

    name: str
    identity: str
    status: str
    ours: bool
    prefix: str
    plans: tuple[str, ...]
    serving: str
    store: str
    parameters: tuple[str, ...]
    weights: str = ""
    cold: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    driver_runs: tuple[str, ...] = ()


def companion_stack(name: str) -> str:
    """Return the name of the stack in which SAM CLI keeps the repositories of a stack's container images."""
    return f"{name[:104]}-{_md5(name)}-CompanionStack"


def repositories(name: str) -> str:
    return f"{re.sub('[^a-z0-9]', '', name.lower())}{_md5(name)}/"


def _md5(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


def find_stack(formation: Any, name: str) -> DeployedStack | None:  # noqa: ANN401 - boto3 has no types here
    try:
        [described] = formation.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if "does not exist" in error.response["Error"].get("Message", ""):
            return None
        raise
    outputs = {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", ())}
    tags = {tag["Key"] for tag in described.get("Tags", ())}
    store = _STORE.search(described.get("Description", ""))
    pairs = outputs.get("Generations", outputs.get("Plans", "")).split(",")
    variants = [variant.split(":") for variant in filter(None, outputs.get("Variants", "").split(","))]
    return DeployedStack(
        name=name,
        identity=described["StackId"],
        status=described["StackStatus"],
        ours=TAG in tags or outputs.keys() >= OUTPUTS,
        prefix=outputs.get("FunctionPrefix", name),
        plans=tuple(filter(None, (pair.partition(":")[0] for pair in pairs))),
        serving=outputs.get(_SERVING, ""),
        store=store[1] if store else "",
        parameters=tuple(parameter["ParameterKey"] for parameter in described.get("Parameters", ())),
        weights=outputs.get("Weights", ""),
        cold={plan: cold for plan, colon, cold in (pair.partition(":") for pair in pairs) if colon},
        beside={main: tuple(others) for main, *others in variants},
        driver_runs=tuple(filter(None, outputs.get("DriverRuns", "").split(","))),
    )


def our_stack(formation: Any, name: str) -> DeployedStack:  # noqa: ANN401 - same
    stack = find_stack(formation, name)
    advice = "is samconfig.toml right, or AWS_PROFILE?"
    if stack is None:
        raise UsageError(f"there is no stack {name} in {formation.meta.region_name}: {advice}")
    if not stack.ours:
        raise UsageError(
            f"{name} is not a stack of serfer deploy package: it has neither the tag {TAG} nor the outputs "
            f"{' and '.join(sorted(OUTPUTS))}: {advice}"
        )
    return stack


def check_update(stack: DeployedStack | None, deployment: Deployment, *, replace: bool = False) -> None:
    """Raise UsageError where an update would delete the plan that a stack serves, or its store.

    With `replace` it may delete the plan.
    """
    if stack is None or not stack.serving:
        return
    if stack.serving not in deployment.plans and not replace:
        raise UsageError(
            f"{stack.name} serves the plan {stack.serving}, and BUILD has only {' and '.join(deployment.plans)}: the "
            "update would delete functions in use, with no way back. Package again: serfer deploy package PLAN --out "
            f"BUILD --previous-of {stack.name}, or delete them all the same: serfer deploy apply --replace "
            "(docs/how-to/deploy.md)"
        )
    if stack.store and stack.store != deployment.options.store:
        raise UsageError(
            f"{stack.name} has the store {stack.store}, and BUILD was packaged for {deployment.options.store}: queries "
            "under way would fail, and the old store would be deleted. Package with another --name"
        )


def _previous(formation: Any, stack: DeployedStack) -> str:  # noqa: ANN401 - same
    others = [plan for plan in stack.plans if plan != stack.serving]
    if not others:
        raise UsageError(f"{stack.name} has the plan {stack.serving} alone: there is none to go back to")
    if stack.serving != stack.plans[0]:
        raise UsageError(
            f"{stack.name} went back to {stack.serving} already: serfer deploy apply returns to the current plan of "
            f"BUILD"
        )
    beside = {stack.cold.get(others[0]) == stack.serving, stack.cold.get(stack.serving) == others[0]}
    if not any(beside) and _released_together(formation, stack):
        raise UsageError(
            f"{stack.name} has never served {others[0]}, which came with {stack.serving}: there is no way back"
        )
    return others[0]


def _released_together(formation: Any, stack: DeployedStack) -> bool:  # noqa: ANN401 - same
    """CloudFormation keeps events for 90 days; a plan whose functions are older than that was served."""
    operation, made = 0, dict[str, int]()
    first = {made(plan, 0, 0): plan for plan in stack.plans for made in (function_id, weights_id)}
    for page in formation.get_paginator("describe_stack_events").paginate(StackName=stack.identity):
        for event in page["StackEvents"]:  # the latest first
            name = event["LogicalResourceId"]
            plan = first.get(name) or first.get(name[:-_HASHED])
            if plan and event["ResourceStatus"] == "CREATE_COMPLETE":
                made.setdefault(plan, operation)
            elif event["PhysicalResourceId"] == stack.identity and event["ResourceStatus"] in _BEGINNINGS:
                operation += 1
    return len(made) == len(stack.plans) and len({*made.values()}) == 1


def roll_back(name: str, session: Any, progress: Callable[[str], None]) -> str:  # noqa: ANN401 - same
    """Switch a stack's drivers back to the previous plan, in the template that it has; return that plan."""
    formation = session.client("cloudformation")
    stack = our_stack(formation, name)
    plan = _previous(formation, stack)
    progress(f"{name}: from plan {stack.serving} to {plan}; CloudFormation takes minutes")
    kept = [{"ParameterKey": key, "UsePreviousValue": True} for key in stack.parameters if key != _SERVING]
    changes = formation.create_change_set(
        StackName=stack.identity,
        ChangeSetName=f"serfer-{uuid.uuid4().hex}",
        ChangeSetType="UPDATE",
        UsePreviousTemplate=True,
        Parameters=[{"ParameterKey": _SERVING, "ParameterValue": plan}, *kept],
        Capabilities=_CAPABILITIES,
    )["Id"]
    _wait(formation, "change_set_create_complete", ChangeSetName=changes)
    formation.execute_change_set(ChangeSetName=changes)
    _wait(formation, "stack_update_complete", StackName=stack.identity)
    return plan


def _wait(formation: Any, event: str, **what: str) -> None:  # noqa: ANN401 - same
    try:
        formation.get_waiter(event).wait(**what, WaiterConfig={"Delay": _WAIT_S, "MaxAttempts": _WAITS})
    except WaiterError as error:
        raise UnavailableError(f"the update failed: {error}; see the stack's events") from error
