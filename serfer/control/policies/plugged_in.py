"""Policies of the user's own: MODULE:Class, and the entry point group `serfer.policies`.

What they are made of, and each plan that they make, is checked before anybody acts on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from serfer.control.dispatch import Batching
from serfer.control.policy import ByRates, InstanceCount, InstanceGroup, Observation, Policy, ProvisioningPlan
from serfer.control.scenario import Market, Scenario
from serfer.control.snapshots import Snapshot
from serfer.core.errors import InputError, UsageError
from serfer.core.wire import MAX_BATCH
from serfer.plug_ins import in_one_line, load_entry, load_object, plugged_in

GROUP: Final = "serfer.policies"
MAX_INSTANCES: Final = 10_000
_MAX_REASON: Final = 1000  # characters


def plugged_in_names() -> list[str]:
    """Return the names that installed packages plug policies in by."""
    return [*plugged_in(GROUP)]


def find_policy(name: str) -> Callable[[Scenario], Policy] | None:
    """Return what makes a policy of the user's own, None for a name that is unknown.

    Raises UsageError for one that cannot be loaded, is not a class, or has not a policy's methods.
    """
    if ":" in name:
        made = load_object(name)
    elif (entry := plugged_in(GROUP).get(name)) is not None:
        made = load_entry(entry)
    else:
        return None
    if not isinstance(made, type):
        raise UsageError(f"policy {name}: {type(made).__name__} is not a class (docs/how-to/add-a-policy.md)")
    missing = [method for method in ("observe", "resume") if not callable(getattr(made, method, None))]
    if missing:
        raise UsageError(f"policy {name}: the class has no {' and no '.join(missing)} (docs/how-to/add-a-policy.md)")
    keeps = [method for method in ("snapshot", "restore") if callable(getattr(made, method, None))]
    if len(keeps) == 1:
        raise UsageError(
            f"policy {name}: the class has {keeps[0]} alone: what it learns is kept by snapshot and restore"
        )
    return lambda scenario: (_CheckedLearner if keeps else _CheckedPolicy)(name, made, scenario)


class _CheckedPolicy:
    """A policy whose errors name it, and whose plans are checked."""

    def __init__(self, name: str, made: type[Any], scenario: Scenario) -> None:
        """Make the policy; raises UsageError where its constructor fails."""
        self.name = name
        self._kinds = {kind.name for kind in scenario.instances}
        try:
            self._policy = made(scenario)
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise UsageError(f"policy {name} could not be made for the scenario: {in_one_line(error)}") from error
        if isinstance(self._policy, ByRates):
            self.dispatcher = self._policy.dispatcher  # so that this one dispatches by rates, too

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Return the policy's plan; raises InputError where it fails, or makes something else than a plan."""
        try:
            plan = self._policy.observe(seen)
        except Exception as error:  # as above
            raise InputError(f"policy {self.name}: observe failed: {in_one_line(error)}") from error
        if (wrong := self._wrong(plan)) is not None:
            raise InputError(f"policy {self.name}: observe returned {wrong} (docs/how-to/add-a-policy.md)")
        checked: ProvisioningPlan = plan
        return checked

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Pass on what is there; raises InputError where the policy fails."""
        try:
            self._policy.resume(fleet)
        except Exception as error:  # as above
            raise InputError(f"policy {self.name}: resume failed: {in_one_line(error)}") from error

    def _wrong(self, plan: object) -> str | None:
        """Return what is wrong with a plan, in words."""
        if not isinstance(plan, ProvisioningPlan):
            return f"{type(plan).__name__}, not a ProvisioningPlan"
        if not isinstance(plan.instances, tuple) or not all(isinstance(one, InstanceCount) for one in plan.instances):
            return "a plan whose instances are not a tuple of InstanceCount"
        if not isinstance(plan.reason, str) or len(plan.reason) > _MAX_REASON or not plan.reason.isprintable():
            return "a plan whose reason is not a short line of text"
        return self._impossible(plan)

    def _impossible(self, plan: ProvisioningPlan) -> str | None:
        """Return what of a plan the scenario cannot have, in words."""
        for one in plan.instances:
            if one.kind not in self._kinds or not isinstance(one.market, Market):
                return f"a plan of {one.kind!r:.80}, {one.market!r:.40}, which the scenario has not"
        counts = [("instances", one.count) for one in plan.instances] + [("warm environments", plan.warm)]
        for what, count in counts:
            if type(count) is not int or not 0 <= count <= MAX_INSTANCES:
                return f"a plan of {count!r:.40} {what}: 0 to {MAX_INSTANCES:,}, an int, is possible"
        if len({(one.kind, one.market, one.batch) for one in plan.instances}) < len(plan.instances):
            return "a plan that lists a type and market twice"
        usual = plan.batching or {}
        if not isinstance(usual, Mapping) or not all(map(_is_batching, usual.values())):
            return f"a plan whose batching is {usual!r:.80}: by type a Batching with a window_s of seconds is possible"
        for batch in (*(one.batch for one in plan.instances), *(one.max_batch for one in usual.values())):
            if type(batch) is not int or not 0 <= batch <= MAX_BATCH:
                return f"a plan of batches of {batch!r:.40} images: 0 to {MAX_BATCH:,}, an int, is possible"
        return None


def _is_batching(one: object) -> bool:
    return isinstance(one, Batching) and isinstance(one.window_s, int | float) and 0.0 <= one.window_s < math.inf


class _CheckedLearner(_CheckedPolicy):
    """A policy that learns, whose snapshots are checked."""

    def snapshot(self) -> Snapshot:
        """Return the policy's snapshot; raises InputError where it fails, or makes no dictionary."""
        try:
            snapshot = self._policy.snapshot()
        except Exception as error:  # as above
            raise InputError(f"policy {self.name}: snapshot failed: {in_one_line(error)}") from error
        if not isinstance(snapshot, dict):
            raise InputError(f"policy {self.name}: snapshot returned {type(snapshot).__name__}, not a dictionary")
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Have the policy go on from a snapshot; raises InputError where it fails, and is of no use then."""
        try:
            self._policy.restore(snapshot)
        except Exception as error:  # as above
            raise InputError(f"policy {self.name}: restore failed: {in_one_line(error)}") from error
