"""The provisioning policies, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from serfer.control.infless.policies import CLUSTER_POLICIES
from serfer.control.nonuniform.policy import NonUniform
from serfer.control.policies.break_even import BreakEven
from serfer.control.policies.fixed import Instances, Serverless
from serfer.control.policies.mark.policy import Mark, MarkSpot
from serfer.control.policies.plugged_in import find_policy, plugged_in_names
from serfer.control.policies.ski_rental import SkiRental
from serfer.control.policies.target_tracking import SageMaker, TargetTracking
from serfer.control.policies.target_tracking_stepwise import StepwiseTargetTracking
from serfer.control.policy import Policy
from serfer.control.scenario import Scenario
from serfer.core.errors import UsageError

DEFAULT: Final = "break-even"
POLICIES: Final[dict[str, Callable[[Scenario], Policy]]] = {
    "break-even": BreakEven,
    "ski-rental": SkiRental,
    "serverless": Serverless,
    "instances": Instances,
    "target-tracking": TargetTracking,
    "target-tracking-stepwise": StepwiseTargetTracking,
    "sagemaker": SageMaker,
    "mark": Mark,
    "mark-spot": MarkSpot,
    NonUniform.name: NonUniform,
}
_WITH_OPTIONS: Final[dict[str, type[Mark]]] = {"mark": Mark, "mark-spot": MarkSpot}
ALONE: Final = frozenset({"sagemaker"})
"""The policies whose instances serve alone: what they cannot take is late or refused, and never on Lambda."""
SEVERAL_TYPES: Final = frozenset({"mark-spot"})
"""The policies that buy several types and spot instances by themselves, where the others buy the first on demand."""


def make_policy(name: str, scenario: Scenario) -> Policy:
    """Return a policy: built in, plugged in by the entry point group `serfer.policies`, or MODULE:Class.

    `mark:KEY=VALUE,...` and `mark-spot:KEY=VALUE,...` have other settings than the default ones (MarkOptions). Raises
    UsageError: no policy has that name, only clusters have it, a setting is unknown or out of bounds, or what the user
    named is none; InputError for a file that is not a trained LSTM.
    """
    make = POLICIES.get(name) or _with_options(name) or find_policy(name)
    if make is None:
        refuse_cluster_policy(name)
        known = ", ".join(dict.fromkeys([*POLICIES, *plugged_in_names()]))
        raise UsageError(f"there is no policy {name!r:.80}: there are {known}, and MODULE:Class")
    return make(scenario)


def refuse_cluster_policy(name: str) -> None:
    """Raise UsageError for a policy that clusters alone have, with what instances have in its place."""
    if name in CLUSTER_POLICIES and name not in POLICIES:
        raise UsageError(
            f"policy {name} needs a cluster's scenario of serfer study simulate, with [[servers]] and [[functions]]; "
            f"non-uniform batches of instances of one type are the policy {NonUniform.name}"
        )


def built_in(name: str) -> str | None:
    """Return which built-in policy a name is of, `mark` of `mark:m=100`; None for one that is plugged in."""
    policy = name.partition(":")[0]
    return policy if name in POLICIES or policy in _WITH_OPTIONS else None


def _with_options(name: str) -> Callable[[Scenario], Policy] | None:
    """Return what makes MArk with the settings behind its name; None for another policy."""
    policy, colon, text = name.partition(":")
    if policy not in _WITH_OPTIONS or not colon:
        return None
    kind = _WITH_OPTIONS[policy]
    options = kind.options.changed(policy, text)

    def make(scenario: Scenario) -> Policy:
        made = kind(scenario, options)
        made.name = name  # recordings tell it from the one with the default settings
        return made

    return make
