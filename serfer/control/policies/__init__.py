"""The provisioning policies by name: SerFer's own, those of the entry point group `serfer.policies`, and MODULE:Class.

A policy's class says what it needs by attributes, each of which may be absent:

    options         its default settings, a frozen dataclass: NAME:KEY=VALUE,... changes them, the class is made with
                    (scenario, settings), and else with (scenario)
    alone           True: its instances serve alone; what they cannot take is late or refused, and never on Lambda
    several_types   True: it buys several types and spot instances by itself, the others the first type on demand
    purchases()     the types and markets that its plans may have
    dispatcher()    what divides the queries of a router among instances (serfer.control.policy.Dispatcher)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from serfer.control.dispatch import Batching
from serfer.control.plug_ins import Check, PlugIn, load, unchecked
from serfer.control.policies.break_even import BreakEven
from serfer.control.policies.fixed import Instances, Serverless
from serfer.control.policies.ski_rental import SkiRental
from serfer.control.policies.target_tracking import SageMaker, TargetTracking
from serfer.control.policy import InstanceCount, Policy, ProvisioningPlan
from serfer.control.router import SERVERLESS
from serfer.control.scenario import Market, Scenario
from serfer.core.errors import MissingExtraError
from serfer.core.wire import MAX_BATCH
from serfer.extras import pip_command
from serfer.plug_ins import plugged_in

DEFAULT: Final = "break-even"
GROUP: Final = "serfer.policies"
POLICIES: Final[dict[str, type[Any]]] = {
    "break-even": BreakEven,
    "ski-rental": SkiRental,
    "serverless": Serverless,
    "instances": Instances,
    "target-tracking": TargetTracking,
    "sagemaker": SageMaker,
}
AUTO: Final = "auto"
GPU: Final = "gpu"
ROUTES: Final = (SERVERLESS, AUTO, GPU, *(name for name in POLICIES if name != SERVERLESS))
STUDY: Final = ("mark", "mark-spot", "nonuniform", "target-tracking-stepwise")
"""The policies that the distribution of benchmarks and studies plugs in."""
MAX_INSTANCES: Final = 10_000
_MAX_REASON: Final = 1000  # characters


def find_policy(name: str, others: str = "") -> PlugIn:
    """Return the policy that a text names, to be made for a scenario by `make_policy`.

    Raises UsageError for one that is unknown, cannot be loaded, is not a class, or has not a policy's methods, and
    MissingExtraError for one of STUDY where that is not installed.
    """
    head = name.partition(":")[0]
    if head in STUDY and head not in plugged_in(GROUP):
        command = pip_command("bench")
        raise MissingExtraError(
            f"policy {head} comes with the studies, which are not installed: {command}", name="bench"
        )
    return load("policy", GROUP, name, ("observe", "resume"), POLICIES, others)


def make_policy(name: str, scenario: Scenario) -> Policy:
    """Return a policy: NAME, NAME:KEY=VALUE,... or MODULE:Class; raises as `find_policy`, and for its settings."""
    kinds = {kind.name for kind in scenario.instances}

    def check(plan: object, *_: object) -> str | None:
        return _fault_of(plan, kinds)

    checks: dict[str, Check] = {"observe": check, "resume": unchecked, "dispatcher": unchecked}
    checks["purchases"] = _purchases_fault
    policy: Policy = find_policy(name).make(scenario, checks=checks)
    policy.name = name  # with its settings
    return policy


def serves_alone(policy: Policy | type[Any]) -> bool:
    """Whether a policy's instances serve alone: what they cannot take is late or refused, and never on Lambda."""
    return bool(getattr(getattr(policy, "guarded", policy), "alone", False))


def buys_several_types(name: str) -> bool:
    """Whether a policy buys several types and spot instances by itself, where the others buy the first on demand."""
    return bool(getattr(find_policy(name).kind, "several_types", False))


def _fault_of(plan: object, kinds: set[str]) -> str | None:
    if not isinstance(plan, ProvisioningPlan):
        return f"{type(plan).__name__}, not a ProvisioningPlan"
    if not isinstance(plan.instances, tuple) or not all(isinstance(group, InstanceCount) for group in plan.instances):
        return "a plan whose instances are not a tuple of InstanceCount"
    if not isinstance(plan.reason, str) or len(plan.reason) > _MAX_REASON or not plan.reason.isprintable():
        return "a plan whose reason is not a short line of text"
    return _count_fault(plan, kinds) or _batching_fault(plan.batching or {}, plan.instances)


def _count_fault(plan: ProvisioningPlan, kinds: set[str]) -> str | None:
    for group in plan.instances:
        if group.kind not in kinds or not isinstance(group.market, Market):
            return f"a plan of {group.kind!r:.80}, {group.market!r:.40}, which the scenario has not"
    counts = [("instances", group.count) for group in plan.instances] + [("warm environments", plan.warm)]
    for what, count in counts:
        if type(count) is not int or not 0 <= count <= MAX_INSTANCES:
            return f"a plan of {count!r:.40} {what}: 0 to {MAX_INSTANCES:,}, an int, is possible"
    if len({(group.kind, group.market, group.batch) for group in plan.instances}) < len(plan.instances):
        return "a plan that lists a type and market twice"
    return None


def _purchases_fault(purchases: object) -> str | None:
    pairs = purchases if isinstance(purchases, list | tuple) else [None]
    if not all(isinstance(pair, tuple) and [*map(type, pair)] == [str, Market] for pair in pairs):
        return f"{purchases!r:.80}, not a list of (type, Market)"
    return None


def _batching_fault(usual: object, instances: Sequence[InstanceCount]) -> str | None:
    if not isinstance(usual, Mapping) or not all(map(_is_batching, usual.values())):
        return f"a plan whose batching is {usual!r:.80}: by type a Batching with a window_s of seconds is possible"
    for batch in (*(group.batch for group in instances), *(batching.max_batch for batching in usual.values())):
        if type(batch) is not int or not 0 <= batch <= MAX_BATCH:
            return f"a plan of batches of {batch!r:.40} images: 0 to {MAX_BATCH:,}, an int, is possible"
    return None


def _is_batching(value: object) -> bool:
    return isinstance(value, Batching) and isinstance(value.window_s, int | float) and 0.0 <= value.window_s < math.inf
