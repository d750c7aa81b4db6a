"""The contract of a provisioning policy: from the load seen so far to how many instances there should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class DesiredReplicas:
    """The wanted number of instances, booting or serving, and the reason, in a few words for logs and counters."""

    instances: int
    reason: str


class Policy(Protocol):
    """Decides how many instances there should be, from the load over time.

    It holds what it has learnt and nothing else: no clock, no view of the fleet. The caller starts and stops instances.
    """

    name: str

    def observe(self, elapsed_s: float, rate: float) -> DesiredReplicas:
        """Observe a load of `rate` queries/s over the `elapsed_s` seconds up to now, and decide."""
        ...

    def resume(self, instances: int) -> None:
        """Go on from so many instances that are on already, started by an earlier controller."""
        ...
