"""What a pool buys: instance types of the scenario, on demand or as spot instances."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from serfer.control.policy import ProvisioningPlan
from serfer.control.scenario import Market, Scenario


@dataclass(frozen=True, order=True)
class Purchase:
    """An instance type, by its name in the scenario, in a market."""

    kind: str
    market: Market = Market.ON_DEMAND

    def __str__(self) -> str:
        """As `--instances` has it: the type, and a market that is not on demand."""
        return self.kind if self.market is Market.ON_DEMAND else f"{self.kind}/{self.market}"


def purchases_of(scenario: Scenario) -> list[Purchase]:
    return [
        Purchase(kind.name, market)
        for kind in scenario.instances
        for market in Market
        if kind.market_usd_per_hour(market) > 0
    ]


def wanted_by(plan: ProvisioningPlan) -> dict[Purchase, int]:
    return {Purchase(*bought): count for bought, count in plan.counts().items()}


def startable(plan: ProvisioningPlan, purchases: Collection[Purchase]) -> ProvisioningPlan:
    """Return what of a plan can be started: types and markets that have no provisioner are left out, by its reason."""
    kept, left = [], []
    for group in plan.instances:
        bought = Purchase(group.kind, group.market)
        if bought in purchases or not group.count:
            kept.append(group)
        else:
            left.append(f"{group.count} {bought}")
    if not left:
        return plan
    return replace(plan, instances=tuple(kept), reason=f"{plan.reason}; --instances has nothing for {', '.join(left)}")
