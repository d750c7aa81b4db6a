"""The provisioning policies, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from serfer.control.policies.break_even import BreakEven
from serfer.control.policies.fixed import Instances, Serverless
from serfer.control.policies.ski_rental import SkiRental
from serfer.control.policies.target_tracking import TargetTracking
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
}


def make_policy(name: str, scenario: Scenario) -> Policy:
    """Return a policy by its name; raises UsageError that lists the names."""
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}: there are {', '.join(POLICIES)}")
    return POLICIES[name](scenario)
