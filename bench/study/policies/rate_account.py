"""What the plans of a policy would cost at the level of rates, where nothing is started or paid for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from serfer.control.environments import Environments, environments
from serfer.control.policy import InstanceGroup, InstanceState, Observation, Policy, ProvisioningPlan
from serfer.control.scenario import S_PER_HOUR, Market, Scenario

_Bought = tuple[str, Market]


class RateAccount:
    """What plans cost at the level of rates: `instances_usd` and `serverless_usd`, as bench/study/sim/rates.py counts.

    An instance costs from its launch on, for its least billed time at least, and serves `qps` once it has booted; the
    last launched of a type and market is the first one stopped. Lambda takes what is left of the load, and is paid for
    the pings that environments take which a plan wants warm. `seconds` have passed, in which plans wanted
    `most_instances` at most, and `instance_s` instances times seconds.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.seconds = 0.0  # of what has passed: a service's clock may be set back
        self.most_instances, self.instance_s, self._wanted = 0, 0.0, 0
        self._launches: dict[_Bought, list[tuple[float, int]]] = {}  # (when, how many), in order
        self._environments = Environments(scenario.serverless)
        self.instances_usd = self.serverless_usd = 0.0

    def adopt(self, fleet: Sequence[InstanceGroup]) -> None:
        for group in fleet:
            if group.state is not InstanceState.DRAINING:
                self._launches.setdefault((group.kind, group.market), []).append((-math.inf, group.count))

    def pass_time(self, elapsed_s: float, rate: float) -> None:
        """Pay for `elapsed_s` seconds at `rate` queries/s."""
        begin_s, self.seconds = self.seconds, self.seconds + elapsed_s
        self.instance_s += self._wanted * elapsed_s
        served = 0.0
        for (name, market), launches in self._launches.items():
            kind = self._scenario.kind(name)
            price = kind.market_usd_per_hour(market) / S_PER_HOUR
            for launched_s, count in launches:
                self.instances_usd += count * price * elapsed_s
                ready_s = max(begin_s, launched_s + kind.boot_s)
                served += count * kind.qps * max(0.0, self.seconds - ready_s)
        rest = max(rate * elapsed_s - served, 0.0)
        self.serverless_usd += rest * self._scenario.serverless.usd_per_query
        if elapsed_s > 0:
            self._environments.use(self.seconds, environments(self._scenario.serverless, rest / elapsed_s))

    def want(self, plan: ProvisioningPlan) -> None:
        """Launch, stop and ping so that there is what a plan wants; raises KeyError for a type the scenario lacks."""
        wanted: dict[_Bought, int] = plan.counts()
        for name, _ in wanted:
            self._scenario.kind(name)
        for bought in [*self._launches, *wanted]:
            self._set(bought, wanted.get(bought, 0))
        self._wanted = plan.total
        self.most_instances = max(self.most_instances, self._wanted)
        pings = self._environments.keep(self.seconds, plan.warm)
        self.serverless_usd += pings * self._scenario.serverless.usd_per_query

    def fleet(self) -> tuple[InstanceGroup, ...]:
        groups = []
        for (name, market), launches in self._launches.items():
            ready_s = self.seconds - self._scenario.kind(name).boot_s
            booting = sum(count for launched_s, count in launches if launched_s > ready_s)
            serving = sum(count for _, count in launches) - booting
            counts = ((InstanceState.BOOTING, booting), (InstanceState.SERVING, serving))
            groups += [InstanceGroup(name, market, state, count) for state, count in counts if count]
        return tuple(groups)

    def _set(self, bought: _Bought, count: int) -> None:
        launches = self._launches.setdefault(bought, [])
        more = count - sum(on for _, on in launches)
        if more > 0:
            launches.append((self.seconds, more))
        while more < 0:
            launched_s, on = launches.pop()
            stopped = min(on, -more)
            self._bill_least(bought, launched_s, stopped)
            if on > stopped:
                launches.append((launched_s, on - stopped))
            more += stopped
        if not launches:
            del self._launches[bought]

    def _bill_least(self, bought: _Bought, launched_s: float, count: int) -> None:
        kind = self._scenario.kind(bought[0])
        left_s = max(0.0, kind.min_billing_s - (self.seconds - launched_s))
        self.instances_usd += count * left_s * kind.market_usd_per_hour(bought[1]) / S_PER_HOUR


class AccountedPolicy:
    """A policy on observations of another one's service, and the account of what it would cost.

    It sees the fleet that it would have; with `same_fleet`, that of the service.
    """

    def __init__(self, policy: Policy, scenario: Scenario, *, same_fleet: bool = False) -> None:
        self.policy = policy
        self.account = RateAccount(scenario)
        self._same_fleet = same_fleet

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Account for the time that has passed, and decide; what the policy raises leaves its fleet as it is."""
        self.account.pass_time(seen.elapsed_s, seen.rate)
        if not self._same_fleet:  # what was taken away was not its own
            seen = replace(seen, fleet=self.account.fleet(), interruptions=())
        plan = self.policy.observe(seen)
        self.account.want(plan)
        return plan

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        self.account.adopt(fleet)
        self.policy.resume(fleet)
