"""The MArk policies: on demand with the first type, and with all types and spot instances."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from serfer.control.batching import Profile
from serfer.control.dispatch import Batching
from serfer.control.environments import environments
from serfer.control.policy import InstanceCount, InstanceGroup, InstanceState, Observation, ProvisioningPlan
from serfer.control.scenario import InstanceType, Market, Scenario
from serfer.core.errors import InputError, UsageError
from serfer.core.units import MS_PER_S
from serfer.core.wire import MAX_BATCH
from serfer_bench.study.policies.mark.forecaster import checked, make_forecaster
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.peaks import PeakSampler
from serfer_bench.study.policies.mark.schedule import Candidate, Key, fill
from serfer_bench.study.policies.tuning import tune


class Standby:
    """Counts the capacity that interruptions take, and gives it up as soon as the planned spot instances serve."""

    def __init__(self, scenario: Scenario, kind: InstanceType | None) -> None:
        self._scenario = scenario
        self._kind = kind
        self._leaving = Counter[str]()
        self._lost_qps = 0.0

    def observe(self, seen: Observation, planned: Mapping[tuple[str, Market], int]) -> int:
        """Return how many stand-ins there should be now; `planned` are those without the ones that are leaving."""
        new = self._new(seen)
        if not new and self._lost_qps and _serve(seen.fleet, planned):
            self._lost_qps = 0.0
        self._lost_qps += sum(count * self._scenario.kind(kind).qps for kind, count in new.items())
        return math.ceil(self._lost_qps / self._kind.qps - _ROUNDING) if self._kind else 0

    def _new(self, seen: Observation) -> Counter[str]:
        """Return by type those that were given notice since the last observation, or were taken away without one."""
        before, self._leaving = self._leaving, Counter[str]()
        for group in seen.fleet:
            if group.state is InstanceState.LEAVING:
                self._leaving[group.kind] += group.count
        gone = Counter({interruption.kind: interruption.count for interruption in seen.interruptions})
        return (self._leaving + gone) - before


def _serve(fleet: Iterable[InstanceGroup], planned: Mapping[tuple[str, Market], int]) -> bool:
    serving = sum(
        group.count for group in fleet if group.market is Market.SPOT and group.state is InstanceState.SERVING
    )
    return serving >= sum(count for (_, market), count in planned.items() if market is Market.SPOT)


_PARTS: Final = 50  # in which the last M queries are kept
_ROUNDING: Final = 1e-9


class CoolDown:
    """Keeps what was planned in the last `seconds`, and at least the last plan."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._plans: deque[tuple[float, Counter[Key]]] = deque()  # (when, instances)
        self._union: Counter[Key] | None = None  # of those

    def add(self, now: float, plan: Counter[Key]) -> None:
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


class SloMonitor:
    """The SLO monitor (MArk, 4.4): of the last `queries` (M) at least the share `met` (SL_min) has to be in time.

    A policy is told how many queries were late, not which: the last M are those of the fewest last observations that
    have so many. Where latencies are not known, queries count as late that come faster than the instances serve which
    are paid for: they would wait, if Lambda did not take them.
    """

    def __init__(self, queries: int, met: float) -> None:
        self._queries = queries
        self._met = met
        self._answered: deque[float] = deque()  # of observations, small ones together
        self._late: deque[float] = deque()

    def observe(self, seen: Observation, capacity: float) -> None:
        if seen.latency is not None:
            answered, late = float(seen.latency.answered), float(seen.latency.late)
        else:
            answered, late = seen.rate * seen.elapsed_s, max(seen.rate - capacity, 0.0) * seen.elapsed_s
        if self._answered and self._answered[-1] < self._queries / _PARTS:
            self._answered[-1] += answered
            self._late[-1] += late
        elif answered:
            self._answered.append(answered)
            self._late.append(late)
        while len(self._answered) > 1 and sum(self._answered) - self._answered[0] >= self._queries:
            self._answered.popleft()
            self._late.popleft()

    @property
    def violated(self) -> bool:
        """Whether there are M queries, and fewer than SL_min of them were in time."""
        answered = sum(self._answered)
        return answered >= self._queries and sum(self._late) > (1 - self._met + _ROUNDING) * answered

    def forget(self) -> None:
        """Forget the queries so far: the same late ones launch backups once."""
        self._answered.clear()
        self._late.clear()


class Mark:
    """Plans instances of the first type, on demand, for the load that is forecast: MArk-ondemand."""

    name = "mark"
    options = MarkOptions()

    def __init__(self, scenario: Scenario, options: MarkOptions | None = None) -> None:
        """Prepare for a scenario; raises InputError where no type is within the SLO."""
        chosen = options or self.options
        self._scenario = scenario
        self._options = chosen
        kinds = [kind for kind in scenario.instances if not kind.burstable]
        self._kinds = _in_time(kinds if chosen.all_types else kinds[:1], scenario.slo_ms)
        self._backup = self._backup_key(kinds)
        stand_ins = [kind for kind in scenario.instances if kind.burstable] if chosen.spot else []
        self._stand_in = stand_ins[0] if stand_ins else None
        self._candidates = [
            Candidate.of(kind, market, chosen.unit_s)
            for kind in self._kinds
            for market in Market
            if market is Market.ON_DEMAND or (chosen.spot and kind.spot_usd_per_hour)
        ]
        boots = max(kind.boot_s for kind in self._kinds)
        self._lead = chosen.lead_units or min(max(1, math.ceil(boots / chosen.unit_s)), chosen.window)
        self._batching = self._batchings() or None
        self._sampler = PeakSampler(chosen.unit_s, chosen.sample_s)
        self._forecaster = make_forecaster(chosen.forecaster, chosen.unit_s)
        self._monitor = SloMonitor(chosen.monitor_queries, chosen.slo_met)
        self._standby = Standby(scenario, self._stand_in)
        self._soon = 0.0  # the highest rate that is forecast for as long as a launch takes
        self._now = 0.0
        self._launched_s = -chosen.unit_s  # when the monitor launched backups last
        self._cool_down = CoolDown(chosen.cooldown_s)

    def purchases(self) -> list[Key]:
        stand_ins = [(self._stand_in.name, Market.ON_DEMAND)] if self._stand_in else []
        return [*dict.fromkeys([*(candidate.key for candidate in self._candidates), self._backup, *stand_ins])]

    def observe(self, seen: Observation) -> ProvisioningPlan:
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
        return ProvisioningPlan(self._counts(wanted), reason, self._environments(seen), self._batching)

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        running, _ = self._paid_for(fleet)
        self._cool_down.add(self._now, running)

    def _backup_key(self, kinds: Sequence[InstanceType]) -> Key:
        wanted = self._options.backup_kind
        if wanted and wanted not in [kind.name for kind in kinds]:
            names = ", ".join(kind.name for kind in kinds)
            raise UsageError(f"mark: t is a type that is not burstable, not {wanted:.40}: the scenario has {names}")
        return wanted or self._kinds[0].name, Market.ON_DEMAND

    def _batchings(self) -> dict[str, Batching]:
        slo_ms, window_ms = self._scenario.slo_ms, self._options.batch_window_ms
        found = {}
        for kind in [*self._kinds, *([self._stand_in] if self._stand_in else [])]:
            if kind.batch_ms(1) > slo_ms:
                continue
            larger = [batch for batch in kind.batches if 1 < batch[0] <= MAX_BATCH]
            tuned = tune(Profile(((1, kind.batch_ms(1)), *larger)), slo_ms)
            waits_ms = tuned.window_ms if window_ms is None else window_ms
            if waits_ms + tuned.batch_ms > slo_ms * (1 + _ROUNDING):
                raise UsageError(
                    f"mark: w_batch of {waits_ms:g} ms and {tuned.batch_ms:g} ms for a batch of {tuned.most} on "
                    f"{kind.name} are more than slo_ms {slo_ms:g}"
                )
            if tuned.most > 1 and waits_ms:
                found[kind.name] = Batching(tuned.most, waits_ms / MS_PER_S)
        return found

    def _plan(self, running: Counter[Key]) -> None:
        forecast = checked(self._forecaster.forecast(self._options.window), self._options.window)
        self._soon = float(forecast[: self._lead].max())
        self._cool_down.add(self._now, fill(forecast[self._lead - 1 :], self._candidates, running))

    def _late(self, seen: Observation, running: Counter[Key]) -> bool:
        if not self._options.backups:
            return False
        capacity = self._capacity(group for group in seen.fleet if group.state is not InstanceState.DRAINING)
        self._monitor.observe(seen, capacity)
        if not self._monitor.violated or self._now < self._launched_s + self._options.unit_s:
            return False
        self._monitor.forget()
        self._launched_s = self._now
        self._cool_down.add(self._now, running + Counter({self._backup: self._options.backups}))
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
        running, leaving = Counter[Key](), Counter[Key]()
        for group in fleet:
            if group.state is InstanceState.LEAVING:
                leaving[group.kind, group.market] += group.count
            elif group.state is not InstanceState.DRAINING and not self._scenario.kind(group.kind).burstable:
                running[group.kind, group.market] += group.count
        return running, leaving

    def _counts(self, wanted: Counter[Key]) -> tuple[InstanceCount, ...]:
        keys = dict.fromkeys([*(candidate.key for candidate in self._candidates), *wanted])
        return tuple(InstanceCount(*key, wanted[key]) for key in keys if wanted[key])


class MarkSpot(Mark):
    """Plans all types of the scenario in both markets, with burstable ones as stand-ins: MArk-spot."""

    name = "mark-spot"
    several_types = True
    options = MarkOptions(all_types=True, spot=True)


def _in_time(kinds: Sequence[InstanceType], slo_ms: float) -> list[InstanceType]:
    kept = [kind for kind in kinds if kind.batch_ms(1) <= slo_ms]
    if not kept:
        names = ", ".join(kind.name for kind in kinds)
        raise InputError(f"mark: no instance type answers an image within slo_ms {slo_ms:g}: there are {names}")
    return kept
