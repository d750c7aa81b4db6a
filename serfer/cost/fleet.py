"""The instances that a policy's plans lead to, of several types and markets: launched, stopped, taken away.

plan ──> launches and stops (of each type and market the last launched first) ──> booting ──> serving
spot instances ──> each lasts for a time that is drawn as it is launched (exponential) ──> notice ──> interruption
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np

from serfer.control.dispatch import assign
from serfer.control.policy import InstanceGroup, InstanceState, Interruption, ProvisioningPlan
from serfer.control.scenario import S_PER_HOUR, CpuCredits, InstanceType, Market, Scenario
from serfer.core.errors import UsageError
from serfer.cost.loads.trace import Trace

_ROUNDING: Final = 1e-9
_MAX_INSTANCES: Final = 10_000


@dataclass(frozen=True)
class SpotLosses:
    """How often a spot instance is taken away, in times an hour; lifetimes are drawn from `seed`.

    It is given notice `notice_s` before, AWS's two minutes. With `on_demand` those that were bought on demand are taken
    away, too: a scenario may have spot's price there. `shares` are (seconds, share): at that time so many of those that
    were launched before the notice are taken away, evenly among the launches.
    """

    per_hour: float = 0.0
    seed: int = 0
    on_demand: bool = False
    notice_s: float = 120.0
    shares: tuple[tuple[float, float], ...] = ()

    def lost_s(self, launched_s: float, number: int, rng: np.random.Generator) -> float:
        """Return when an instance is taken away, the launch of which was the `number`-th, from 0 on."""
        drawn = launched_s + float(rng.exponential(S_PER_HOUR / self.per_hour)) if self.per_hour else math.inf
        noticed = launched_s + self.notice_s
        hit = (time for time, share in self.shares if noticed < time and _nth(number + 1, share) > _nth(number, share))
        return min(drawn, *hit, math.inf)


def _nth(count: int, share: float) -> int:
    return math.floor(count * share + _ROUNDING)


@dataclass(frozen=True)
class Purchase:
    """An instance type in a market."""

    kind: InstanceType
    market: Market

    @property
    def usd_per_s(self) -> float:
        return self.kind.market_usd_per_hour(self.market) / S_PER_HOUR


class CreditBalance:
    """The CPU credits of a burstable instance, all of whose vCPUs compute a batch."""

    def __init__(self, known: CpuCredits, launched_s: float) -> None:
        self._known = known
        self._balance = known.at_launch
        self._as_of_s = launched_s

    def compute(self, now: float, seconds: float) -> float:
        """Spend what a batch of so many `seconds` at full speed takes from `now` on, and return what it takes.

        When credits are used up, the rest is computed at the baseline.
        """
        known = self._known
        self._balance = min(known.most, self._balance + (now - self._as_of_s) * known.earned)
        net = known.spent - known.earned
        full_s = min(seconds, self._balance / net) if net > 0 else seconds
        took_s = full_s + (seconds - full_s) / known.baseline
        self._balance -= max(net, 0.0) * full_s
        self._as_of_s = now + took_s
        return took_s


@dataclass(slots=True, eq=False)
class Instance:
    """An instance that is paid for: `lost_s` is when it will be taken away, `batch` is set by plans, 0 is unset."""

    purchase: int
    kind: InstanceType
    launched_s: float
    lost_s: float = math.inf
    on: bool = True
    batch: int = 0

    @property
    def ready_s(self) -> float:
        return self.launched_s + self.kind.boot_s


class Fleet:
    """The instances that are on; `usd_per_s` is what they cost.

    `ended` are those that were stopped: each with the time, and whether it was taken away.
    """

    def __init__(self, scenario: Scenario, losses: SpotLosses | None = None) -> None:
        self._scenario = scenario
        self._losses = losses or SpotLosses()
        self._rng = np.random.default_rng(self._losses.seed)
        self._purchases: dict[tuple[str, Market], int] = {}
        self.purchases: list[Purchase] = []
        self._on: list[list[Instance]] = []  # by purchase, in the order of their launches
        self.ended: list[tuple[Instance, float, bool]] = []
        self._wanted: ProvisioningPlan | None = None
        self._losing: list[tuple[float, int, Instance]] = []  # a heap
        self._launches = 0
        self._groups: tuple[InstanceGroup, ...] = ()
        self._changes_s = math.inf  # when the next instance serves, or is given notice
        self.usd_per_s = 0.0

    def __iter__(self) -> Iterator[Instance]:
        return (instance for group in self._on for instance in group)

    def resume(self, launches: Sequence[tuple[float, Purchase]]) -> list[Instance]:
        return [self._launch(self._number(launch.kind.name, launch.market), launched) for launched, launch in launches]

    def groups(self, now: float) -> tuple[InstanceGroup, ...]:
        if now >= self._changes_s:
            self._count(now)
        return self._groups

    def lose(self, now: float) -> list[Instance]:
        lost = []
        while self._losing and self._losing[0][0] <= now:
            _, _, instance = heappop(self._losing)
            if instance.on:
                self._on[instance.purchase].remove(instance)
                self._end(instance, instance.lost_s, lost=True)
                lost.append(instance)
        if lost:
            self._wanted = None  # the next plan replaces them, if it wants as many
            self._count(now)
        return lost

    def carry_out(self, now: float, plan: ProvisioningPlan) -> tuple[list[Instance], list[Instance]]:
        """Launch and stop instances, and set batch sizes, so that there is what a plan wants; return both lists."""
        before = self._wanted
        if before is not None and (plan.instances, plan.batching) == (before.instances, before.batching):
            return [], []
        counts = {self._number(*bought): count for bought, count in plan.counts().items()}
        launched, stopped = [], []
        for number, group in enumerate(self._on):
            count = counts.get(number, 0)
            while len(group) > count:
                stopped.append(group.pop())
                self._end(stopped[-1], now, lost=False)
            launched += [self._launch(number, now) for _ in range(count - len(group))]
        is_set = self._set_batches(plan)
        self._wanted = plan
        if launched or stopped or is_set:
            self._count(now)
        return launched, stopped

    def _set_batches(self, plan: ProvisioningPlan) -> bool:
        changed = False
        for bought, group in zip(self.purchases, self._on, strict=True):
            batches = assign([instance.batch for instance in group], plan.batches(bought.kind.name, bought.market))
            for instance, batch in zip(group, batches, strict=True):
                changed = changed or instance.batch != batch
                instance.batch = batch
        return changed

    def _number(self, kind: str, market: Market) -> int:
        key = kind, market
        if key not in self._purchases:
            self._purchases[key] = len(self._on)
            self.purchases.append(Purchase(self._scenario.kind(kind), market))
            self._on.append([])
        return self._purchases[key]

    def _launch(self, number: int, now: float) -> Instance:
        bought = self.purchases[number]
        instance = Instance(number, bought.kind, now)
        if self._losses.on_demand or bought.market is Market.SPOT:
            instance.lost_s = self._losses.lost_s(now, self._launches, self._rng)
            self._launches += 1
        if instance.lost_s < math.inf:
            heappush(self._losing, (instance.lost_s, self._launches, instance))
        self._on[number].append(instance)
        self.usd_per_s += bought.usd_per_s
        self._changes_s = -math.inf
        return instance

    def _end(self, instance: Instance, time_s: float, *, lost: bool) -> None:
        instance.on = False
        self.usd_per_s -= self.purchases[instance.purchase].usd_per_s
        self.ended.append((instance, time_s, lost))

    def _count(self, now: float) -> None:
        groups, self._changes_s = [], math.inf
        for bought, group in zip(self.purchases, self._on, strict=True):
            states = Counter((self._state(instance, now), instance.batch) for instance in group)
            groups += [
                InstanceGroup(bought.kind.name, bought.market, state, count, batch)
                for (state, batch), count in sorted(states.items(), key=_by_state)
            ]
        self._groups = tuple(groups)

    def _state(self, one: Instance, now: float) -> InstanceState:
        """Return an instance's state, and note when the next one changes."""
        notice_s = one.lost_s - self._losses.notice_s
        if notice_s <= now:
            return InstanceState.LEAVING
        booting = one.ready_s > now
        self._changes_s = min(self._changes_s, notice_s, one.ready_s if booting else math.inf)
        return InstanceState.BOOTING if booting else InstanceState.SERVING


def _by_state(counted: tuple[tuple[InstanceState, int], int]) -> tuple[int, int]:
    (state, batch), _ = counted
    return [*InstanceState].index(state), batch


def interruptions_of(lost: Sequence[Instance]) -> tuple[Interruption, ...]:
    return tuple(Interruption(kind, count) for kind, count in sorted(Counter(loss.kind.name for loss in lost).items()))


def check_peak(trace: Trace, scenario: Scenario) -> None:
    kind = scenario.instance
    if trace.peak / kind.qps > _MAX_INSTANCES:
        raise UsageError(
            f"{trace.name}: its peak of {trace.peak:,.4g} queries/s would take more than {_MAX_INSTANCES:,} instances "
            f"of {kind.name}, at {kind.qps:g} each: give a smaller --scale, or correct qps in the scenario"
        )
