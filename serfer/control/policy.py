"""The contract of a provisioning policy: observations of load, latency and fleet in, a plan of capacity out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from serfer.control.dispatch import Batching, window_s
from serfer.control.scenario import InstanceType, Market


class InstanceState(StrEnum):
    """The state of an instance that is paid for.

    It boots; serves; is leaving: a spot instance that was given notice, and is paid for until it is taken away (in
    simulations it serves until then, in a service it gets no more queries); or drains: it gets no more queries, and
    ends.
    """

    BOOTING = "booting"
    SERVING = "serving"
    LEAVING = "leaving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """So many instances of a type and market that are in one state, with one batch size; 0 where it was never set."""

    kind: str
    market: Market
    state: InstanceState
    count: int
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Interruption:
    """Spot instances of a type that were taken away since the last observation."""

    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """The queries that were answered since the last observation, how many of them past the SLO, and their latency.

    Of several drivers, `p99_ms` is the largest of theirs.
    """

    answered: int
    late: int
    p99_ms: float


NO_QUERIES: Final = LatencyWindow(0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees, once a period.

    `now_s` is the caller's clock in seconds: Unix time in a service, the load's own time in a simulation. `rate` is the
    load of all drivers in queries/s over the `elapsed_s` seconds up to now, one image each. `latency` is None where it
    is not known, as in simulations at the level of rates; `fleet` has the instances that are paid for.
    """

    now_s: float
    elapsed_s: float
    rate: float
    fleet: tuple[InstanceGroup, ...] = ()
    latency: LatencyWindow | None = None
    interruptions: tuple[Interruption, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceCount:
    """The wanted number of instances of a type and market, booting or serving, with a batch size.

    A `batch` of 0 is what the plan's `batching` has for the type, or else the largest of the scenario. An instance with
    a batch size waits for it to be full, others do not.
    """

    kind: str
    market: Market
    count: int
    batch: int = 0


_UNSET: Final = Batching(0)


@dataclass(frozen=True, slots=True)
class ProvisioningPlan:
    """The capacity that a policy wants from now on, and the reason, in a few words for logs and counters.

    `instances` lists each type, market and batch size once, the one first that is the last to be given up under a
    ceiling of dollars. `warm` is how many environments of the serverless target there are to be at least: pings start
    those that queries do not keep, at the price of a query each, sent in a service by the driver that leads.
    `batching` is of instance types whose batches are not to be as large as the scenario allows and begin at once: the
    size of instances without one of their own, and how long they wait for it.
    """

    instances: tuple[InstanceCount, ...]
    reason: str
    warm: int = 0
    batching: Mapping[str, Batching] | None = None

    @property
    def total(self) -> int:
        return sum(group.count for group in self.instances)

    def counts(self) -> dict[tuple[str, Market], int]:
        counts: dict[tuple[str, Market], int] = {}
        for group in self.instances:
            counts[group.kind, group.market] = counts.get((group.kind, group.market), 0) + group.count
        return counts

    def batches(self, kind: str, market: Market) -> list[int]:
        usual = self._usual(kind).max_batch
        sizes = [
            [group.batch or usual] * group.count
            for group in self.instances
            if (group.kind, group.market) == (kind, market)
        ]
        return [batch for same in sizes for batch in same]

    def window_s(self, kind: InstanceType, batch: int, slo_ms: float) -> float:
        """Return how long an instance waits for a batch of this size: as `batching` says, or else as INFless has it.

        One without a size does not wait.
        """
        usual = self._usual(kind.name)
        if batch == usual.max_batch:
            return usual.window_s
        return window_s(kind, batch, slo_ms)

    def _usual(self, kind: str) -> Batching:
        return (self.batching or {}).get(kind, _UNSET)


def on_demand(kind: InstanceType, count: int, reason: str) -> ProvisioningPlan:
    return ProvisioningPlan((InstanceCount(kind.name, Market.ON_DEMAND, count),) if count else (), reason)


def fleet_of(kind: InstanceType, booting: int, serving: int) -> tuple[InstanceGroup, ...]:
    states = ((InstanceState.BOOTING, booting), (InstanceState.SERVING, serving))
    return tuple(InstanceGroup(kind.name, Market.ON_DEMAND, state, count) for state, count in states if count)


def paid_for(fleet: Iterable[InstanceGroup], kind: str | None = None) -> int:
    """Return how many instances of a fleet, or of one type in it, boot or serve."""
    return sum(group.count for group in fleet if group.state != InstanceState.DRAINING and kind in (None, group.kind))


def on_demand_in(fleet: Iterable[InstanceGroup], kind: InstanceType) -> int:
    """Return how many instances of one type, bought on demand, boot or serve: all that `on_demand` plans."""
    return paid_for((group for group in fleet if group.market is Market.ON_DEMAND), kind.name)


class Target(Protocol):
    """An instance that may get queries."""

    @property
    def name(self) -> str:
        """What it is called; never empty."""
        ...

    @property
    def kind(self) -> int:
        """Its type's place in the scenario."""
        ...

    @property
    def batch(self) -> int:
        """Its batch size; OWN where none was set."""
        ...


class Dispatcher(Protocol):
    """Divides the queries of one router among instances: what a policy's `dispatcher()` returns."""

    def observe(self, rate: float, elapsed_s: float) -> None:
        """Take in the load of all drivers over the last seconds."""
        ...

    def choose(self, targets: Sequence[Target], images: int, admits: Callable[[int], bool]) -> int | None:
        """Return the place of the instance that a query goes to, None where Lambda gets it.

        `admits` says of a place whether that instance would answer in time.
        """
        ...


class Policy(Protocol):
    """Decides on the capacity there should be, from what is observed over time.

    It is pure and deterministic: it holds what it has learnt and nothing else, and reads no clock. The caller starts
    and stops instances.
    """

    name: str

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Learn from an observation, and decide."""
        ...

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Go on from instances that are on already, started by an earlier controller."""
        ...
