"""The published fleet as a driver sees it: instances by type, market and state, their dollars, and interruptions."""

from __future__ import annotations

from collections import Counter, defaultdict

from serfer.control.policy import InstanceGroup, InstanceState, Interruption
from serfer.control.scenario import S_PER_HOUR, Scenario
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import FleetMember, FleetState
from serfer.fleet.rolling_sum import RollingSum


class ObservedFleet:
    """Follows what the leader publishes, `state`; types that the scenario does not have are passed over."""

    def __init__(self, scenario: Scenario) -> None:
        self.state: FleetState | None = None
        self._scenario = scenario
        self._types = {kind.name for kind in scenario.instances}
        self._usd: defaultdict[Purchase, RollingSum] = defaultdict(RollingSum)
        self._interrupted: Counter[str] | None = None

    @property
    def members(self) -> list[tuple[Purchase, FleetMember]]:
        """The instances, each with its type and market."""
        listed = self.state.members if self.state else ()
        found = [(bought_as(member, self._scenario), member) for member in listed]
        return [(bought, member) for bought, member in found if bought.kind in self._types]

    @property
    def on(self) -> Counter[Purchase]:
        """The number of instances of each type and market."""
        return Counter(bought for bought, _ in self.members)

    def groups(self) -> tuple[InstanceGroup, ...]:
        """Return the instances that are paid for, by type, market, state and batch size."""
        counts = Counter((bought, InstanceState(member.state), member.batch) for bought, member in self.members)
        return tuple(
            InstanceGroup(bought.kind, bought.market, state, count, batch)
            for (bought, state, batch), count in sorted(counts.items())
        )

    def interruptions(self) -> tuple[Interruption, ...]:
        """Return the spot instances that were taken away since the last call; none before the first one."""
        if self.state is None:
            return ()
        total = Counter({one.kind: one.count for one in self.state.interruptions if one.kind in self._types})
        known = total if self._interrupted is None else self._interrupted
        new, self._interrupted = total - known, known | total  # an older version's drivers leave them out of the record
        return tuple(Interruption(kind, count) for kind, count in sorted(new.items()))

    def pay(self, now: float, elapsed_s: float) -> None:
        """Add what the instances cost in the last `elapsed_s` seconds."""
        for bought, count in self.on.items():
            price = self._scenario.kind(bought.kind).market_usd_per_hour(bought.market)
            self._usd[bought].add(now, count * price * elapsed_s / S_PER_HOUR)

    def hour_usd(self, now: float) -> dict[Purchase, float]:
        """Return the dollars of the last hour by type and market."""
        return {bought: total for bought, spent in self._usd.items() if (total := spent.total(now)) > 0}


def bought_as(member: FleetMember, scenario: Scenario) -> Purchase:
    """Return an instance's type and market: of the first type where it does not say."""
    return Purchase(member.kind or scenario.instance.name, member.market)
