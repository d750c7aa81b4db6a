"""The MArk policies: on demand with the first type, and with all types and spot instances."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from serfer.control.environments import environments
from serfer.control.policies.mark.forecaster import KeptForecaster, checked, make_forecaster
from serfer.control.policies.mark.peaks import PeakSampler
from serfer.control.policies.mark.schedule import Candidate, Key, fill
from serfer.control.policies.mark.standby import Standby
from serfer.control.policy import InstanceCount, InstanceGroup, InstanceState, Observation, ProvisioningPlan
from serfer.control.scenario import InstanceType, Market, Scenario
from serfer.control.snapshots import MOST_COUNTED, MOST_QPS, SavedFields, Snapshot
from serfer.core.errors import InputError

_MAX_PLANS: Final = 10_000  # in a snapshot
_MAX_KINDS: Final = 64  # types and markets in one of them


class CoolDown:
    """Keeps what was planned in the last `seconds`, and at least the last plan."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._plans: deque[tuple[float, Counter[Key]]] = deque()  # (when, instances)
        self._union: Counter[Key] | None = None  # of those

    def add(self, now: float, plan: Counter[Key]) -> None:
        """Add a plan; `now` never goes back."""
        self._plans.append((now, plan))
        self._union = None

    def kept(self, now: float) -> Counter[Key]:
        """Return the most instances of each type and market that a kept plan wants."""
        while len(self._plans) > 1 and self._plans[0][0] <= now - self._seconds:
            self._plans.popleft()
            self._union = None
        if self._union is None:
            self._union = Counter[Key]()
            for _, plan in self._plans:
                self._union |= plan
        return self._union

    def snapshot(self) -> list[Snapshot]:
        """Return the plans, oldest first, as plain JSON values."""
        return [{"at": when, "instances": _listed(plan.items())} for when, plan in self._plans]

    def restore(self, saved: SavedFields, key: str, scenario: Scenario, now: float) -> None:
        """Go on from a snapshot, which is a field of `saved`; raises InputError for what is not one."""
        kinds = {kind.name for kind in scenario.instances}
        for one in saved.parts(key, saved.length(key, _MAX_PLANS)):
            plan = Counter[Key]()
            for group in one.parts("instances", one.length("instances", _MAX_KINDS)):
                place = group.choice("kind", kinds), Market(group.choice("market", {*Market}))
                plan[place] = group.whole("count", 1, MOST_COUNTED)
            least = self._plans[-1][0] if self._plans else 0.0
            self.add(one.number("at", least, now), plan)


def _listed(plan: Iterable[tuple[Key, int]]) -> list[Snapshot]:
    return [{"kind": kind, "market": market.value, "count": count} for (kind, market), count in plan if count]


class SloMonitor:
    """The SLO monitor (MArk, 4.4): judges `queries` at a time (M), of which at least the share `met` has to be in time.

    Where latencies are not known, queries count as late that come faster than the instances serve which are paid for:
    they would wait, if Lambda did not take them.
    """

    def __init__(self, queries: float, met: float) -> None:
        self._queries = queries
        self._met = met
        self._answered = self._late = 0.0

    def violated(self, seen: Observation, capacity: float) -> bool:
        """Take in an observation, with the queries/s that instances serve; says whether M queries are over and late."""
        if seen.latency is not None:
            self._answered += seen.latency.answered
            self._late += seen.latency.late
        else:
            self._answered += seen.rate * seen.elapsed_s
            self._late += max(seen.rate - capacity, 0.0) * seen.elapsed_s
        if self._answered < self._queries:
            return False
        violated = self._late > (1 - self._met) * self._answered
        self._answered = self._late = 0.0
        return violated

    def snapshot(self) -> Snapshot:
        """Return the queries that are not judged yet, as plain JSON values."""
        return {"answered": self._answered, "late": self._late}

    def restore(self, saved: SavedFields) -> None:
        """Go on from a snapshot; raises InputError for what is not one."""
        self._answered = saved.number("answered", 0.0)
        self._late = saved.number("late", 0.0)


_LAYOUT: Final = 1  # of snapshots: another number for other fields


@dataclass(frozen=True)
class MarkOptions:
    """The paper's settings; [P_u, P_w, P_s] is [1 min, 60, 5 s].

    `lead_units` is tau, by default the units in which the slowest type boots. `cooldown_s` is how long an instance is
    kept that no plan wants. The monitor judges `monitor_queries` (M) by the share `slo_met` (SL_min), and launches
    `backups` (L) of the first type (T). With `all_types` the scenario's other types are candidates too, with `spot`
    their spot prices. Burstable types are no candidates: with `spot` the first of them stands in for instances that are
    taken away.
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


class Mark:
    """Plans instances of the first type, on demand, for the load that is forecast: MArk-ondemand."""

    name = "mark"
    options = MarkOptions()

    def __init__(self, scenario: Scenario, options: MarkOptions | None = None) -> None:
        """Prepare for a scenario; raises InputError where no type is within the SLO, UsageError for no forecaster."""
        chosen = options or self.options
        self._scenario = scenario
        self._options = chosen
        kinds = [kind for kind in scenario.instances if not kind.burstable]
        self._kinds = _in_time(kinds if chosen.all_types else kinds[:1], scenario.slo_ms)
        stand_ins = [kind for kind in scenario.instances if kind.burstable] if chosen.spot else []
        self._stand_in = stand_ins[0] if stand_ins else None
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
        self._standby = Standby(scenario, self._stand_in)
        self._soon = 0.0  # the highest rate that is forecast for as long as a launch takes
        self._now = 0.0
        self._launched_s = -chosen.unit_s  # when the monitor launched backups last
        self._cool_down = CoolDown(chosen.cooldown_s)

    @property
    def purchases(self) -> list[Key]:
        """The types and markets that plans may have."""
        stand_ins = [(self._stand_in.name, Market.ON_DEMAND)] if self._stand_in else []
        return [*(one.key for one in self._candidates), *stand_ins]

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Plan where a unit is over, launch backups where queries are late, and keep what was planned for a while."""
        self._now += seen.elapsed_s
        running, leaving = self._paid_for(seen.fleet)
        reason = ""
        peaks = self._sampler.add(seen.elapsed_s, seen.rate)
        if peaks:
            for peak in peaks:
                self._forecaster.observe(peak)
            self._plan(running)
        if self._late(seen, running):
            reason = "; backups, as queries are late"
        wanted = self._cool_down.kept(self._now)
        stand_ins = self._standby.observe(seen, wanted)
        wanted = wanted + leaving
        if stand_ins and self._stand_in is not None:
            wanted[self._stand_in.name, Market.ON_DEMAND] += stand_ins
            reason += "; stand-ins for spot instances"
        reason = f"{seen.rate:.1f} queries/s: planned ahead{reason}"
        return ProvisioningPlan(self._counts(wanted), reason, self._environments(seen))

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Keep them for a cool-down."""
        running, _ = self._paid_for(fleet)
        self._cool_down.add(self._now, running)

    def snapshot(self) -> Snapshot:
        """Return all that was learnt, as plain JSON values; raises InputError where the forecaster has no snapshot."""
        forecaster = self._kept_forecaster()
        return {
            "version": _LAYOUT,
            "now": self._now,
            "launched_s": self._launched_s,
            "soon": self._soon,
            "sampler": self._sampler.snapshot(),
            "forecaster": type(forecaster).__name__,
            "forecast": forecaster.snapshot(),
            "monitor": self._monitor.snapshot(),
            "standby": self._standby.snapshot(),
            "plans": self._cool_down.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, as if there had been no stop; raises InputError, and is of no use then."""
        forecaster = self._kept_forecaster()
        saved = SavedFields.of(snapshot, self.name)
        saved.check_version(_LAYOUT)
        self._now = saved.number("now", 0.0)
        self._launched_s = saved.number("launched_s", -self._options.unit_s, self._now)
        self._soon = saved.number("soon", 0.0, MOST_QPS)
        self._sampler.restore(saved.part("sampler"))
        saved.choice("forecaster", {type(forecaster).__name__})
        forecaster.restore(dict(saved.part("forecast").values))
        self._monitor.restore(saved.part("monitor"))
        self._standby.restore(saved.part("standby"))
        self._cool_down.restore(saved, "plans", self._scenario, self._now)

    def _kept_forecaster(self) -> KeptForecaster:
        if isinstance(self._forecaster, KeptForecaster):
            return self._forecaster
        raise InputError(f"forecaster {self._options.forecaster} keeps nothing: it has no snapshot and restore")

    def _plan(self, running: Counter[Key]) -> None:
        forecast = checked(self._forecaster.forecast(self._options.window), self._options.window)
        self._soon = float(forecast[: self._lead].max())
        self._cool_down.add(self._now, fill(forecast[self._lead - 1 :], self._candidates, running))

    def _late(self, seen: Observation, running: Counter[Key]) -> bool:
        """Launch backups where the SLO is violated, at most once a unit."""
        capacity = self._capacity(group for group in seen.fleet if group.state is not InstanceState.DRAINING)
        if not self._monitor.violated(seen, capacity) or self._now < self._launched_s + self._options.unit_s:
            return False
        self._launched_s = self._now
        backup = Counter({self._candidates[0].key: self._options.backups})
        self._cool_down.add(self._now, running + backup)
        return True

    def _environments(self, seen: Observation) -> int:
        """Return how many of Lambda's environments are to be warm before a surge that the instances cannot take.

        That is what comes now, or is forecast until a launch serves, beyond the instances that serve and stay.
        """
        staying = self._capacity(group for group in seen.fleet if group.state is InstanceState.SERVING)
        return environments(self._scenario.serverless, max(seen.rate, self._soon) - staying)

    def _capacity(self, fleet: Iterable[InstanceGroup]) -> float:
        return sum(self._scenario.kind(group.kind).qps * group.count for group in fleet)

    def _paid_for(self, fleet: Iterable[InstanceGroup]) -> tuple[Counter[Key], Counter[Key]]:
        """Return the candidates' instances that boot or serve, and those that will be taken away."""
        running, leaving = Counter[Key](), Counter[Key]()
        for group in fleet:
            if group.state is InstanceState.LEAVING:
                leaving[group.kind, group.market] += group.count
            elif group.state is not InstanceState.DRAINING and not self._scenario.kind(group.kind).burstable:
                running[group.kind, group.market] += group.count
        return running, leaving

    def _counts(self, wanted: Counter[Key]) -> tuple[InstanceCount, ...]:
        """Return the instances by type and market, the candidates' first."""
        keys = dict.fromkeys([*(one.key for one in self._candidates), *wanted])
        return tuple(InstanceCount(*key, wanted[key]) for key in keys if wanted[key])


class MarkSpot(Mark):
    """Plans all types of the scenario in both markets, with burstable ones as stand-ins: MArk-spot."""

    name = "mark-spot"
    options = MarkOptions(all_types=True, spot=True)


def _in_time(kinds: Sequence[InstanceType], slo_ms: float) -> list[InstanceType]:
    """Return the types that answer an image within the SLO; raises InputError where none does."""
    kept = [kind for kind in kinds if kind.batch_ms(1) <= slo_ms]
    if not kept:
        names = ", ".join(kind.name for kind in kinds)
        raise InputError(f"mark: no instance type answers an image within slo_ms {slo_ms:g}: there are {names}")
    return kept
