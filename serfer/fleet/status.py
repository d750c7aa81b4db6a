"""A driver's view of its pool, for metrics and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from serfer.fleet.purchase import Purchase


@dataclass(frozen=True)
class TypeStatus:
    """The instances of a type and market that are wanted, there, and used by a driver; dollars of the last hour."""

    wanted: int = 0
    on: int = 0
    serving: int = 0
    hour_usd: float = 0.0


@dataclass(frozen=True)
class Status:
    """A driver's view of the pool: whether it leads, its instances by type, and Lambda's dollars of the last hour."""

    leads: bool = False
    types: Mapping[Purchase, TypeStatus] = field(default_factory=dict)
    serverless_usd: float = 0.0

    @property
    def wanted(self) -> int:
        """The number of instances wanted."""
        return sum(one.wanted for one in self.types.values())

    @property
    def on(self) -> int:
        """The number of instances that are paid for."""
        return sum(one.on for one in self.types.values())

    @property
    def serving(self) -> int:
        """The number of instances that this driver uses."""
        return sum(one.serving for one in self.types.values())

    @property
    def instances_usd(self) -> float:
        """The instances' dollars of the last hour."""
        return sum(one.hour_usd for one in self.types.values())

    def counts(self) -> tuple[bool, Mapping[Purchase, TypeStatus]]:
        """Return what a change of is worth a line in the log: all but dollars."""
        return self.leads, {bought: replace(one, hour_usd=0.0) for bought, one in self.types.items()}
