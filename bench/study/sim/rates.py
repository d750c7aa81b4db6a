"""A policy over a whole trace at the level of rates: what it costs, and how many instances there are when.

    trace ──> steps (at most a period, within a row) ──> policy: instances wanted ──> launches and stops
          ──> instances that serve ──> load beyond them: on Lambda

A decision takes effect when its step is over. An instance is paid for from its launch on and serves `boot_s` later, at
most `qps` queries a second; of each type and market the last one launched is the first one stopped. An environment that
a plan wants warm and that is not there takes a ping, at the price of a query. Only the policy, its fleet and these
environments run step by step; everything else is arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from serfer.control.environments import Environments, environments
from serfer.control.policy import Observation, Policy
from serfer.control.router import Router
from serfer.control.scenario import Scenario
from serfer.cost.fleet import Fleet, Purchase, SpotLosses, interruptions_of
from serfer.cost.loads.steps import PERIOD_S, Progress, Steps, silent, steps_of
from serfer.cost.loads.trace import Floats, Trace
from serfer_bench.study.sim.fleet_history import InstanceHistory, history_of

_CHUNK: Final = 20_000  # steps between two reports of progress
_HALVINGS: Final = 10


@dataclass(frozen=True, eq=False)
class Timeline:
    """Between `times_s` (n + 1,): the load, Lambda's part of it (both in queries/s), instances on and serving, (n,).

    `instances_usd_per_s` is what those that are on cost.
    """

    times_s: Floats
    rates: Floats
    on: Floats
    serving: Floats
    instances_usd_per_s: Floats
    serverless: Floats


@dataclass(frozen=True)
class RatesResult:
    """The cost of a policy over a trace, in dollars, and where the load was served, in queries.

    `instances_usd` honours the least billed time; `min_billing_usd` is the part that only that costs. `booting_usd` is
    the part of `serverless_usd` that instances would have served that still booted. `refused` found no target, `late`
    came faster than instances serve where nothing else takes it. `pings`, by steps, at their ends, start environments
    that a plan wants warm, for a part of `serverless_usd`. `routers` are as they were at the marks.
    """

    queries: float
    serverless_usd: float
    instances_usd: float
    min_billing_usd: float
    booting_usd: float
    launches: int
    on_s: float
    on_instances: float
    refused: float
    late: float
    pings: Floats = field(repr=False)
    steps: Steps = field(repr=False)
    fleet: InstanceHistory = field(repr=False)
    timeline: Timeline = field(repr=False)
    routers: tuple[Router, ...] = field(repr=False)

    @property
    def cost_usd(self) -> float:
        return self.serverless_usd + self.instances_usd

    def resume(self, mark_s: float, end_s: float) -> tuple[Steps, float, list[tuple[float, Purchase]]]:
        """Return the steps from a mark to a time, when the first begins, and the launches of what is on then."""
        first, last = self.steps.before(mark_s), self.steps.before(end_s)
        begin_s = float(self.steps.ends_s[first - 1]) if first else 0.0
        return self.steps.part(first, last), begin_s, self.fleet.on_after(begin_s)


def run_rates(
    trace: Trace,
    scenario: Scenario,
    policy: Policy,
    *,
    period_s: float = PERIOD_S,
    max_usd_per_hour: float = math.inf,
    overflow: bool = True,
    losses: SpotLosses | None = None,
    marks: Sequence[float] = (),
    progress: Progress = silent,
) -> RatesResult:
    """Run a policy, as `make_policy` gives it, over a trace; it has learnt the whole trace afterwards.

    `losses` takes spot instances away.
    `marks` are times, ascending, in seconds, at which the router is kept as it is then, to go on from.
    """
    steps = steps_of(trace, period_s)
    router = Router(scenario, policy, max_usd_per_hour=max_usd_per_hour, overflow=overflow)
    fleet, unlimited = Fleet(scenario, losses), max_usd_per_hour == math.inf
    walk: _Stepper = _UnlimitedStepper(router, fleet) if unlimited else _LimitedStepper(router, fleet)
    count, allowed, kept = len(steps.rates), np.ones(len(steps.rates)), []
    for part, marked in _parts(steps, marks):
        kept += [deepcopy(router) for _ in range(marked)]
        progress(f"{policy.name}: {part.start / count:.0%}")
        durations, rates = steps.durations_s[part].tolist(), steps.rates[part].tolist()
        allowed[part] = walk.over(durations, rates)
    history = history_of(fleet, float(steps.ends_s[-1]))
    return _accounted(steps, scenario, history, allowed, walk, kept, overflow=overflow)


def _parts(steps: Steps, marks: Sequence[float]) -> Iterator[tuple[slice, int]]:
    count, marked = len(steps.rates), [steps.before(mark) for mark in marks]
    bounds = sorted({*range(0, count, _CHUNK), *marked, count})
    for begin, end in pairwise(bounds):
        yield slice(begin, end), marked.count(begin)
    yield slice(count, count), marked.count(count)


class _Stepper(Protocol):
    def over(self, durations_s: Sequence[float], rates: Sequence[float]) -> list[float] | float:
        """Launch and stop instances after each step, and return which share of Lambda's load is paid for."""
        ...

    def pings(self, steps: Steps, on_lambda: Floats) -> Floats:
        """Return how many environments were started at the end of each step, of a load (queries/s) on Lambda."""
        ...


class _UnlimitedStepper:
    def __init__(self, router: Router, fleet: Fleet) -> None:
        self._now = 0.0
        self._observe = router.policy.observe
        self._target = router.scenario.serverless
        self._environments = Environments(self._target)
        self._fleet = fleet
        self._warm: list[int] = []  # environments that are wanted

    def over(self, durations_s: Sequence[float], rates: Sequence[float]) -> list[float] | float:
        observe, fleet, warm, now = self._observe, self._fleet, self._warm, self._now
        for seconds, rate in zip(durations_s, rates, strict=True):
            now += seconds
            lost = interruptions_of(fleet.lose(now))
            plan = observe(Observation(now, seconds, rate, fleet.groups(now), interruptions=lost))
            fleet.carry_out(now, plan)
            warm.append(plan.warm)
        self._now = now
        return 1.0

    def pings(self, steps: Steps, on_lambda: Floats) -> Floats:
        pings = np.zeros(len(self._warm))
        if not any(self._warm):
            return pings
        walk = zip(steps.ends_s.tolist(), on_lambda.tolist(), self._warm, strict=True)
        for number, (now, load, wanted) in enumerate(walk):
            self._environments.use(now, environments(self._target, load))
            pings[number] = self._environments.keep(now, wanted)
        return pings


class _LimitedStepper:
    def __init__(self, router: Router, fleet: Fleet) -> None:
        self._now = 0.0
        self._router = router
        self._usd_per_query = router.scenario.serverless.usd_per_query
        self._target = router.scenario.serverless
        self._environments = Environments(self._target)
        self._fleet = fleet
        self._pings: list[int] = []

    def over(self, durations_s: Sequence[float], rates: Sequence[float]) -> list[float] | float:
        allowed, fleet = [], self._fleet
        for seconds, rate in zip(durations_s, rates, strict=True):
            begin, self._now = self._now, self._now + seconds
            lost = interruptions_of(fleet.lose(self._now))
            served = sum(min(max(self._now - one.ready_s, 0.0), seconds) * one.kind.qps for one in fleet)
            over = max(rate * seconds - served, 0.0) * self._usd_per_query
            paid = self._pay(begin, over)
            allowed.append(paid / over if over else 1.0)
            seen = Observation(self._now, seconds, rate, fleet.groups(self._now), interruptions=lost)
            plan = self._router.tick(seen)
            fleet.carry_out(self._now, plan)
            self._environments.use(self._now, environments(self._target, paid / self._usd_per_query / seconds))
            pings = self._environments.keep(self._now, plan.warm)
            self._router.budget_limiter.pay(self._now, pings * self._usd_per_query)
            self._pings.append(pings)
        return allowed

    def pings(self, steps: Steps, on_lambda: Floats) -> Floats:
        del steps, on_lambda
        return np.array(self._pings, dtype=np.float64)

    def _pay(self, now: float, usd: float) -> float:
        limiter, paid = self._router.budget_limiter, 0.0
        part = usd
        for _ in range(_HALVINGS):
            if paid + part <= usd and limiter.allows(now, part):
                limiter.pay(now, part)
                paid += part
                if paid == usd:
                    break
            part /= 2
        return paid


def _accounted(
    steps: Steps,
    scenario: Scenario,
    fleet: InstanceHistory,
    allowed: Floats,
    walk: _Stepper,
    kept: Sequence[Router],
    *,
    overflow: bool,
) -> RatesResult:
    timeline, booting, refused, late = _timeline(steps, fleet, allowed, overflow=overflow)
    price = scenario.serverless.usd_per_query
    spans = np.diff(timeline.times_s)
    step = np.searchsorted(steps.ends_s, timeline.times_s[:-1], side="right")
    on_lambda = np.bincount(step, spans * timeline.serverless, len(steps.rates)) / steps.durations_s
    pings = walk.pings(steps, on_lambda) if overflow else np.zeros(len(steps.rates))
    unused = float(fleet.min_billing_usd.sum())
    return RatesResult(
        queries=float(spans @ timeline.rates),
        serverless_usd=float(spans @ timeline.serverless + pings.sum()) * price,
        instances_usd=fleet.usd + unused,
        min_billing_usd=unused,
        booting_usd=float(spans @ booting) * price,
        launches=len(fleet.launched_s),
        on_s=fleet.on_s,
        on_instances=float(spans @ (timeline.rates - timeline.serverless)) - refused,
        refused=refused,
        late=late,
        pings=pings,
        steps=steps,
        fleet=fleet,
        timeline=timeline,
        routers=tuple(kept),
    )


def _timeline(
    steps: Steps, fleet: InstanceHistory, allowed: Floats, *, overflow: bool
) -> tuple[Timeline, Floats, float, float]:
    ends, ready = steps.ends_s, fleet.ready_s
    lost = fleet.stopped_s[fleet.lost]
    times = np.unique(np.concatenate(([0.0], ends, ready[ready < ends[-1]], lost)))
    begins, spans = times[:-1], np.diff(times)
    step = np.minimum(np.searchsorted(ends, begins, side="right"), len(ends) - 1)
    rates, on, serving = steps.rates[step], fleet.on_at(begins), fleet.serving_at(begins)
    beyond = np.maximum(rates - fleet.capacity_at(begins), 0.0)
    serverless = beyond * allowed[step] if overflow else np.zeros(len(rates))
    timeline = Timeline(times, rates, on, serving, fleet.usd_per_s_at(begins), serverless)
    booting = np.minimum(serverless, fleet.booting_capacity_at(begins))
    nowhere = beyond - serverless if overflow else np.where(serving, 0.0, beyond)
    late = 0.0 if overflow else float(spans @ (beyond - nowhere))
    return timeline, booting, float(spans @ nowhere), late
