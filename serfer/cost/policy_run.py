"""A policy over a whole load at the level of rates: what it costs, and how it begins the parts that are simulated.

An instance takes `qps` queries a second from when it has booted on; functions take what is beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from serfer.control.policy import Observation, Policy
from serfer.control.router import Router
from serfer.control.scenario import Scenario
from serfer.cost.fleet import Fleet, Instance, Purchase
from serfer.cost.loads.steps import Progress, Steps, steps_of
from serfer.cost.loads.trace import Trace

_CHUNK: Final = 20_000  # steps between two reports of progress


@dataclass(frozen=True, eq=False)
class Beginning:
    """A router and the launches of the instances that are on, at the beginning of a step."""

    step: int
    time_s: float
    router: Router
    launches: tuple[tuple[float, Purchase], ...]


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """The dollars of a policy over a load, and the state at its marks."""

    cost_usd: float
    steps: Steps
    marks: tuple[Beginning, ...]


def run_policy(
    load: Trace, scenario: Scenario, policy: Policy, period_s: float, marks: Sequence[float], progress: Progress
) -> PolicyRun:
    """Run a policy that wants no environments warm; `marks` are times of the load, in any order."""
    steps = steps_of(load, period_s)
    router, fleet = Router(scenario, policy), Fleet(scenario)
    marked = [steps.before(mark) for mark in marks]
    beginnings: dict[int, Beginning] = {}
    now = instances_usd = on_functions = 0.0
    for number, (seconds, rate) in enumerate(zip(steps.durations_s.tolist(), steps.rates.tolist(), strict=True)):
        if number in marked:
            launches = tuple((instance.launched_s, fleet.purchases[instance.purchase]) for instance in fleet)
            beginnings[number] = Beginning(number, now, deepcopy(router), launches)
        if number % _CHUNK == 0:
            progress(f"{policy.name}: {number / len(steps.rates):.0%}")
        on_functions += _beyond(fleet, rate, now, now + seconds)
        now += seconds
        plan = policy.observe(Observation(now, seconds, rate, fleet.groups(now)))
        _, stopped = fleet.carry_out(now, plan)
        instances_usd += sum(_usd(instance, fleet, now) for instance in stopped)
    instances_usd += sum(_usd(instance, fleet, now) for instance in fleet if instance.launched_s < now)
    usd = instances_usd + on_functions * scenario.serverless.usd_per_query
    return PolicyRun(usd, steps, tuple(deepcopy(beginnings[number]) for number in marked))


def _beyond(fleet: Fleet, rate: float, begin: float, end: float) -> float:
    ready = [(instance.ready_s, instance.kind.qps) for instance in fleet]
    times = sorted({begin, end, *(time for time, _ in ready if begin < time < end)})
    return sum(
        (until - since) * max(rate - sum(qps for time, qps in ready if time <= since), 0.0)
        for since, until in pairwise(times)
    )


def _usd(instance: Instance, fleet: Fleet, end: float) -> float:
    billed_s = max(end - instance.launched_s, instance.kind.min_billing_s)
    return billed_s * fleet.purchases[instance.purchase].usd_per_s
