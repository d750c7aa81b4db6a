"""A policy on recorded observations: whether it decides again as it did, or what another one would have decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serfer.control.nonuniform.replayed_shares import DispatchAccount, DispatchedShare
from serfer.control.policy import Observation, Policy, ProvisioningPlan
from serfer.control.saved.recording import Decided, Header, Resumed
from serfer.control.scenario import Scenario
from serfer.control.shadow import RateAccount, Shadow
from serfer.core.errors import InputError


@dataclass(frozen=True)
class Difference:
    """The first observation (counted from 1) after which another plan followed; None where a policy failed."""

    at: int
    now_s: float
    recorded: ProvisioningPlan | None
    replayed: ProvisioningPlan | None


@dataclass(frozen=True)
class Totals:
    """What a policy wanted, at most and on average over time, and what that costs at the level of rates."""

    policy: str
    most_instances: int
    mean_instances: float
    serverless_usd: float
    instances_usd: float

    @property
    def usd(self) -> float:
        """Dollars of both targets."""
        return self.serverless_usd + self.instances_usd


@dataclass(frozen=True)
class ReplayReport:
    """The decisions of a recording beside those of a replay; `same` counts equal plans, `first` is where they part.

    `dispatch` is where the recorded driver sent its queries, under a policy that dispatches by rates.
    """

    decisions: int
    seconds: float
    same: int
    first: Difference | None
    recorded: Totals
    replayed: Totals
    dispatch: tuple[DispatchedShare, ...] = ()


def replay(header: Header, events: Iterable[Resumed | Decided], scenario: Scenario, policy: Policy) -> ReplayReport:
    """Run a policy that has seen nothing yet over a recording; raises InputError where that is of another scenario.

    The recorded policy sees what it saw. Another one sees the same load, and the fleet that it would have had.
    """
    if header.scenario != scenario.digest:
        raise InputError("the recording was made with other prices or speeds than --scenario has: give that scenario")
    again = policy.name == header.policy
    if again:
        header.begin(policy)
    walk = _Walk(_Course(header.policy, RateAccount(scenario)), Shadow(policy, scenario, same_fleet=again), scenario)
    for event in events:
        walk.take(event)
    return walk.report()


class _Course:
    """Adds up what a policy wanted, and what that costs."""

    def __init__(self, name: str, account: RateAccount) -> None:
        self._name, self.account = name, account
        self._most, self._area, self._wanted = 0, 0.0, 0

    def pass_time(self, elapsed_s: float) -> None:
        self._area += self._wanted * elapsed_s

    def want(self, plan: ProvisioningPlan | None) -> None:
        if plan is not None:
            self._wanted = plan.total
            self._most = max(self._most, plan.total)

    def totals(self, seconds: float) -> Totals:
        mean = self._area / seconds if seconds else 0.0
        return Totals(self._name, self._most, mean, self.account.serverless_usd, self.account.instances_usd)


class _Walk:
    """Goes through a recording with the recorded plans and a shadow side by side."""

    def __init__(self, recorded: _Course, shadow: Shadow, scenario: Scenario) -> None:
        self._recorded, self._shadow = recorded, shadow
        self._replayed = _Course(shadow.policy.name, shadow.account)
        self._dispatch = DispatchAccount(scenario)
        self._decisions = self._same = 0
        self._seconds = 0.0
        self._first: Difference | None = None

    def take(self, event: Resumed | Decided) -> None:
        if isinstance(event, Resumed):
            self._recorded.account.adopt(event.resume)
            self._shadow.resume(event.resume)
            return
        seen, plan = event.seen, event.plan
        self._dispatch.take(seen)
        self._recorded.account.pass_time(seen.elapsed_s, seen.rate)
        again = self._observed(seen)
        if plan is not None:
            self._recorded.account.want(plan)
        self._seconds += seen.elapsed_s
        for course, wanted in ((self._recorded, plan), (self._replayed, again)):
            course.pass_time(seen.elapsed_s)
            course.want(wanted)
        self._decisions += 1
        if plan == again:
            self._same += 1
        elif self._first is None:
            self._first = Difference(self._decisions, seen.now_s, plan, again)

    def _observed(self, seen: Observation) -> ProvisioningPlan | None:
        try:
            return self._shadow.observe(seen)
        except Exception:  # noqa: BLE001 - the live one's errors are survived and recorded, too
            return None

    def report(self) -> ReplayReport:
        return ReplayReport(
            self._decisions,
            self._seconds,
            self._same,
            self._first,
            self._recorded.totals(self._seconds),
            self._replayed.totals(self._seconds),
            self._dispatch.rows(),
        )
