"""The MArk policies: on demand with the first type, and with all types and spot instances."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from serfer.control.policies.mark.forecaster import checked, make_forecaster
from serfer.control.policies.mark.peaks import PeakSampler
from serfer.control.policies.mark.schedule import Candidate, Key, fill
from serfer.control.policies.mark.slo_monitor import SloMonitor
from serfer.control.policies.mark.standby import Standby
from serfer.control.policy import InstanceCount, InstanceGroup, InstanceState, Observation, ProvisioningPlan
from serfer.control.scenario import InstanceType, Market, Scenario
from serfer.core.errors import InputError

_MS: Final = 1000.0


@dataclass(frozen=True)
class MarkOptions:
    """The paper's settings; [P_u, P_w, P_s] is [1 min, 60, 5 s].

    `lead_units` is tau, by default the units in which the slowest type boots. `cooldown_s` is how long an instance is
    kept that no plan wants. The monitor judges `monitor_queries` (M) by the share `slo_met` (SL_min), and launches
    `backups` (L) of the first type (T). With `all_types` the scenario's other types are candidates too, with `spot`
    their spot prices, and `standby` names the type that stands in for interrupted ones and is no candidate.
    """

    forecaster: str = "seasonal"
    unit_s: float = 60.0
    window: int = 60
    sample_s: float = 5.0
    lead_units: int | None = None
    cooldown_s: float = 300.0
    monitor_queries: float = 1000.0
    slo_met: float = 0.98
    backups: int = 1
    all_types: bool = False
    spot: bool = False
    standby: str | None = None


class Mark:
    """Plans instances of the first type, on demand, for the load that is forecast: MArk-ondemand."""

    name = "mark"
    options = MarkOptions()

    def __init__(self, scenario: Scenario, options: MarkOptions | None = None) -> None:
        """Prepare for a scenario; raises InputError where no type is within the SLO, UsageError for no forecaster."""
        chosen = options or self.options
        self._scenario = scenario
        self._options = chosen
        kinds = [kind for kind in scenario.instances if kind.name != chosen.standby]
        self._kinds = _in_time(kinds if chosen.all_types else kinds[:1], scenario.slo_ms)
        self._candidates = [
            Candidate.of(kind, market, chosen.unit_s)
            for kind in self._kinds
            for market in Market
            if market is Market.ON_DEMAND or (chosen.spot and kind.spot_usd_per_hour)
        ]
        boots = max(kind.boot_s for kind in self._kinds)
        self._lead = max(1, math.ceil(boots / chosen.unit_s)) if chosen.lead_units is None else chosen.lead_units
        self._sampler = PeakSampler(chosen.unit_s, chosen.sample_s)
        self._forecaster = make_forecaster(chosen.forecaster)
        self._monitor = SloMonitor(chosen.monitor_queries, chosen.slo_met)
        self._standby = Standby(scenario, None if chosen.standby is None else scenario.kind(chosen.standby))
        self._now = 0.0
        self._launched_s = -math.inf  # when the monitor launched backups last
        self._plans: deque[tuple[float, Counter[Key]]] = deque()  # (when, instances) of a cool-down
        self._union: Counter[Key] | None = None  # of those

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Plan where a unit is over, launch backups where queries are late, and keep what was planned for a while."""
        self._now += seen.elapsed_s
        running = _running(seen.fleet)
        reason = ""
        peaks = self._sampler.add(seen.elapsed_s, seen.rate)
        if peaks:
            for peak in peaks:
                self._forecaster.observe(peak)
            self._plan(running)
        if self._late(seen, running):
            reason = "; backups, as queries are late"
        wanted = self._kept()
        stand_ins = self._standby.observe(seen.interruptions, seen.fleet, wanted)
        if stand_ins and self._options.standby is not None:
            wanted = wanted + Counter({(self._options.standby, Market.ON_DEMAND): stand_ins})
            reason += "; stand-ins for spot instances"
        warm = math.ceil(self._standby.lost_qps * self._scenario.serverless.latency_ms / _MS)
        return ProvisioningPlan(self._counts(wanted), f"{seen.rate:.1f} queries/s: planned ahead{reason}", warm)

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Keep them for a cool-down."""
        self._add(_running(fleet))

    def _kept(self) -> Counter[Key]:
        """Return the instances that a plan of the cool-down wants, or the last one."""
        while len(self._plans) > 1 and self._plans[0][0] <= self._now - self._options.cooldown_s:
            self._plans.popleft()
            self._union = None
        if self._union is None:
            self._union = Counter[Key]()
            for _, plan in self._plans:
                self._union |= plan
        return self._union

    def _add(self, plan: Counter[Key]) -> None:
        self._plans.append((self._now, plan))
        self._union = None

    def _plan(self, running: Counter[Key]) -> None:
        forecast = checked(self._forecaster.forecast(self._options.window), self._options.window)
        self._add(fill(forecast[self._lead - 1 :], self._candidates, running))

    def _late(self, seen: Observation, running: Counter[Key]) -> bool:
        """Launch backups where the SLO is violated, at most once a unit."""
        capacity = sum(self._scenario.kind(kind).qps * count for (kind, _), count in running.items())
        if not self._monitor.violated(seen, capacity) or self._now < self._launched_s + self._options.unit_s:
            return False
        self._launched_s = self._now
        backup = Counter({self._candidates[0].key: self._options.backups})
        self._add(running + backup)
        return True

    def _counts(self, wanted: Counter[Key]) -> tuple[InstanceCount, ...]:
        """Return the instances by type and market, the candidates' first."""
        keys = dict.fromkeys([*(one.key for one in self._candidates), *wanted])
        return tuple(InstanceCount(*key, wanted[key]) for key in keys if wanted[key])


class MarkSpot(Mark):
    """Plans all types of the scenario in both markets: MArk-spot."""

    name = "mark-spot"
    options = MarkOptions(all_types=True, spot=True)


def _in_time(kinds: Sequence[InstanceType], slo_ms: float) -> list[InstanceType]:
    """Return the types that answer an image within the SLO; raises InputError where none does."""
    kept = [kind for kind in kinds if kind.batch_ms(1) <= slo_ms]
    if not kept:
        names = ", ".join(kind.name for kind in kinds)
        raise InputError(f"mark: no instance type answers an image within slo_ms {slo_ms:g}: there are {names}")
    return kept


def _running(fleet: Sequence[InstanceGroup]) -> Counter[Key]:
    running = Counter[Key]()
    for group in fleet:
        if group.state is not InstanceState.DRAINING:
            running[group.kind, group.market] += group.count
    return running
