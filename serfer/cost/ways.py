"""Ways to serve a load, side by side: dollars a month, latencies, cold queries and those that are not answered.

    one function, the same with SnapStart, with provisioned environments ─┐
    a plan's stages or gangs, and the driver function that waits for them ─┼─ query by query (queries.py), the whole
    instances that are always on, SageMaker Serverless ────────────────────┘  load or its busiest and median part
    functions and instances, by a policy ── the level of rates (policy_run.py), and the same parts query by query

Dollars are those of the load, for a month of it. Times of functions and of the instance are predicted by one model
(cost_model.py), and so are prices; what is drawn are arrivals within a row of the load and invocations' tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from serfer.control.policies import DEFAULT, make_policy
from serfer.control.policies.fixed import Serverless
from serfer.control.policy import InstanceGroup, Observation, Policy, ProvisioningPlan, on_demand
from serfer.control.router import Router
from serfer.control.scenario import S_PER_HOUR, InstanceType, LambdaTarget, Market, Scenario
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import HOURS_A_MONTH
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.fleet import Purchase, check_peak
from serfer.cost.functions import (
    Functions,
    one_function,
    sagemaker_serverless,
    split_functions,
    with_provisioned,
    with_snapstart,
)
from serfer.cost.loads.arrivals import arrival_times
from serfer.cost.loads.steps import PERIOD_S, Progress, silent
from serfer.cost.loads.trace import Floats, Trace
from serfer.cost.policy_run import run_policy
from serfer.cost.queries import QueriesResult, QueriesRun, warm_up_s
from serfer.cost.windows import Window, windows_of

MOST_QUERIES: Final = 300_000
"""Queries of a load that is simulated whole; of a larger one, its busiest and its median part are."""
_MOST_DECISIONS: Final = 20_000
_SECONDS_A_MONTH: Final = S_PER_HOUR * HOURS_A_MONTH
_MB_PER_GB: Final = 1024
_COVERED: Final = 0.99  # of the queries, that find a provisioned environment
_NOTABLE: Final = 0.001  # of the queries
_CENTS: Final = 2  # digits of dollars
_SHORTEST_WINDOW_S: Final = 10.0


@dataclass(frozen=True)
class ServingWay:
    """A way to serve the load: figures of a month, of queries that were answered, and shares of all that came.

    `cold_share` is None where nothing starts. Not `answered` is what was refused, throttled, or takes longer than a
    REST API waits (`services.api_timeout`).
    """

    name: str
    month_usd: float
    p50_ms: float | None
    p99_ms: float | None
    cold_share: float | None
    unanswered: float

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "name": self.name.strip()}


@dataclass(frozen=True)
class Comparison:
    """The ways to serve a load, and from how many queries an hour on an instance costs less than the functions.

    `wins_from` is None where one instance takes fewer. `windows` are the parts that were simulated query by query,
    `period_s` how far apart the policy of the last way decides.
    """

    load: Trace
    ways: tuple[ServingWay, ...]
    slo_ms: float
    instance: InstanceType
    functions: str
    usd_per_query: float
    wins_from: float | None
    windows: tuple[Window, ...]
    period_s: float

    @property
    def whole(self) -> bool:
        return self.windows[0].name == "whole"

    @property
    def queries_a_month(self) -> float:
        return self.load.mean * _SECONDS_A_MONTH

    @property
    def least(self) -> ServingWay:
        """The way of the least dollars, of those that answer as many queries as any does."""
        return min(self._able, key=lambda way: round(way.month_usd, _CENTS))  # of those alike, the simplest

    @property
    def least_in_time(self) -> ServingWay | None:
        """The same of those whose p99 is within the SLO, None where there are none."""
        in_time = (way for way in self._able if way.p99_ms is not None and way.p99_ms <= self.slo_ms)
        return min(in_time, key=lambda way: round(way.month_usd, _CENTS), default=None)

    @property
    def _able(self) -> list[ServingWay]:
        most = min(way.unanswered for way in self.ways)
        return [way for way in self.ways if way.unanswered <= most + _NOTABLE]

    def as_dict(self) -> dict[str, Any]:
        return {
            "load": {
                "name": self.load.name,
                "queries": self.load.queries,
                "seconds": self.load.seconds,
                "mean_qps": self.load.mean,
                "peak_qps": self.load.peak,
                "remarks": list(self.load.remarks),
            },
            "queries_a_month": self.queries_a_month,
            "ways": [way.as_dict() for way in self.ways],
            "slo_ms": self.slo_ms,
            "least": self.least.name.strip(),
            "least_in_time": self.least_in_time.name.strip() if self.least_in_time else None,
            "instance": {
                "name": self.instance.name,
                "usd_per_hour": self.instance.usd_per_hour,
                "qps": self.instance.qps,
                "wins_from_queries_per_hour": self.wins_from,
                "over": self.functions,
                "usd_per_query": self.usd_per_query,
            },
            "simulated": [asdict(window) for window in self.windows],
            "period_s": self.period_s,
        }


class _AlwaysOn:
    """A policy that keeps so many instances."""

    name = "always-on"

    def __init__(self, kind: InstanceType, count: int) -> None:
        self._plan = on_demand(kind, count, "always on")

    def observe(self, seen: Observation) -> ProvisioningPlan:
        del seen
        return self._plan

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Want as many, whatever is on."""


@dataclass(frozen=True)
class Serving:
    """The simulation of ways to serve a load, all in the same windows and by one seed; `scenario` has the instance."""

    load: Trace
    scenario: Scenario
    facts: AwsFacts
    seed: int = 0

    @property
    def windows(self) -> tuple[Window, ...]:
        return windows_of(self.load, self.window_s)

    @property
    def window_s(self) -> float:
        """The length of a window, in seconds: such that the busiest has about as many queries as may be simulated."""
        seconds = self.load.seconds
        if self.load.queries <= MOST_QUERIES:
            return seconds
        while seconds > _SHORTEST_WINDOW_S:
            seconds /= 2
            if float((self.load.resampled(seconds).rates * seconds).max()) <= MOST_QUERIES:
                break
        return seconds

    def target(self, functions: Functions, usd_per_query: float | None = None) -> Scenario:
        target = LambdaTarget(
            usd_per_query=functions.warm_usd if usd_per_query is None else usd_per_query,
            latency_ms=functions.warm.mean * MS_PER_S,
            cold_ms=max(functions.cold_s - functions.warm.mean, 0.0) * MS_PER_S,
            concurrency=functions.concurrency,
            memory_gb=functions.memory_mb / _MB_PER_GB,
            keep_alive_s=self.facts.functions.kept_warm,
        )
        return replace(self.scenario, serverless=target)

    def results(self, functions: Functions, launches: Sequence[tuple[float, Purchase]] = ()) -> list[QueriesResult]:
        """Run the windows on functions, or on instances alone that were launched before."""
        scenario = self.target(functions)
        policy: Policy = _AlwaysOn(scenario.instance, len(launches)) if launches else Serverless(scenario)
        limits = self._limits(functions)
        found = []
        for window in self.windows:
            begin = max(0.0, window.begin_s - warm_up_s(scenario))
            times = arrival_times(self.load, begin, window.end_s, self.seed)
            router = Router(scenario, policy, overflow=not launches)
            run = QueriesRun(scenario, router, functions.times, launches, self.seed, limits=limits)
            found.append(run.through(times, begin, window))
        return found

    def _limits(self, functions: Functions) -> DriverLimits:
        growth = max(self.facts.functions.growth // functions.environments, 1)
        return DriverLimits(growth=growth, provisioned=functions.provisioned)

    def on_functions(self, functions: Functions) -> ServingWay:
        results = self.results(functions)
        came = max(sum(result.queries for result in results), 1)
        cold = sum(result.cold_starts for result in results) / came
        paid = sum(result.on_serverless for result in results) / came
        usd = paid * functions.warm_usd + cold * (functions.cold_usd - functions.warm_usd)
        if functions.provisioned:
            covered = paid * self.covered(functions, functions.provisioned)
            usd -= covered * (functions.warm_usd - functions.provisioned_usd)
        month = self.load.mean * _SECONDS_A_MONTH * usd + functions.month_usd
        return self._way(functions.name, month, results, cold)

    def on_instances(self, functions: Functions) -> ServingWay:
        """Serve the load on instances that are always on: as many as its busiest minute takes, or twice that and so on.

        More are taken while p99 misses the SLO, at most as many as the highest rate of any row takes.
        """
        kind = self.scenario.instance
        count, most = (
            max(1, math.ceil(peak / kind.qps - 1e-9)) for peak in (self.load.resampled(60.0).peak, self.load.peak)
        )
        while True:
            launches = [(-kind.boot_s, Purchase(kind, Market.ON_DEMAND))] * count
            usd = count * kind.usd_per_hour * HOURS_A_MONTH
            way = self._way(f"{count:,} {kind.name}, always on", usd, self.results(functions, launches), None)
            if count >= most or (way.p99_ms is not None and way.p99_ms <= self.scenario.slo_ms):
                return way
            count = min(2 * count, most)

    def mixed(self, name: str, functions: Functions, usd_per_query: float, progress: Progress) -> ServingWay:
        scenario = self.target(functions, usd_per_query)
        load = self.load.resampled(self.period_s)
        check_peak(load, scenario)
        windows = windows_of(load, self.window_s)
        marks = [max(0.0, window.begin_s - warm_up_s(scenario)) for window in windows]
        policy = make_policy(DEFAULT, scenario)
        run = run_policy(load, scenario, policy, self.period_s, marks, progress)
        results = []
        for window, begin in zip(windows, run.marks, strict=True):
            steps = run.steps.part(begin.step, run.steps.before(window.end_s))
            queries = QueriesRun(
                scenario, begin.router, functions.times, begin.launches, self.seed, limits=self._limits(functions)
            )
            results.append(queries.over(steps, begin.time_s, window, progress))
        came = max(sum(result.queries for result in results), 1)
        cold = sum(result.cold_starts for result in results) / came
        month = run.cost_usd * _SECONDS_A_MONTH / load.seconds + functions.month_usd
        return self._way(name, month, results, cold)

    @property
    def period_s(self) -> float:
        return max(PERIOD_S, math.ceil(self.load.seconds / _MOST_DECISIONS))

    def provisioned(self, functions: Functions) -> int:
        """Return how many environments 99% of the queries find free: those that run at once, and their own."""
        running = np.concatenate([*self._running(functions)])
        wanted = int(np.quantile(running, _COVERED, method="higher")) + 1 if running.size else 1
        return min(wanted, functions.concurrency)

    def covered(self, functions: Functions, count: int) -> float:
        running = np.concatenate([*self._running(functions)])
        return float((running < count).mean()) if running.size else 1.0

    def _running(self, functions: Functions) -> Iterator[Floats]:
        for window in self.windows:
            times = arrival_times(self.load, window.begin_s, window.end_s, self.seed)
            ended = np.searchsorted(times + functions.warm.mean, times, side="right")
            yield np.asarray(np.arange(len(times)) - ended, dtype=np.float64)

    def _way(
        self, name: str, month_usd: float, results: Sequence[QueriesResult], cold_share: float | None
    ) -> ServingWay:
        latencies = np.concatenate([result.latencies_s for result in results])
        came = max(sum(result.queries for result in results), 1)
        answered = latencies[latencies <= self.facts.services.api_timeout]
        p50, p99 = (MS_PER_S * np.quantile(answered, (0.5, 0.99))).tolist() if answered.size else (None, None)
        return ServingWay(name, month_usd, p50, p99, cold_share, max(0.0, 1 - len(answered) / came))


def compare_ways(
    load: Trace,
    whole: Plan,
    split: Plan | None,
    scenario: Scenario,
    facts: AwsFacts,
    driver_mb: int,
    progress: Progress = silent,
) -> Comparison:
    """Simulate every way to serve a load: with the plan of one task, and that of several (None: there is none).

    `scenario` has the instance type first; raises UsageError for a load without queries.
    """
    if not load.queries:
        raise UsageError(f"{load.name} has no queries")
    serving = Serving(load, scenario, facts)
    one = one_function(whole, facts)
    snapshot = with_snapstart(whole, one, facts)
    ready = with_provisioned(whole, one, serving.provisioned(one), facts)
    divided = [split_functions(split, facts, driver_mb)] if split else []
    endpoint = [found] if (found := sagemaker_serverless(whole, facts)) else []
    ways = {}
    for functions in (one, snapshot, ready, *divided, *endpoint):
        progress(functions.name.strip())
        ways[functions] = serving.on_functions(functions)
    progress("instances")
    alone = serving.on_instances(one)
    chosen = min((one, *divided), key=lambda functions: _order(ways[functions], scenario.slo_ms))
    name = f"SerFer: {'one function' if chosen is one else 'split'}, {scenario.instance.name}"
    mixed = serving.mixed(name, chosen, chosen.usd(ways[chosen].cold_share or 0.0), progress)
    kind, usd = scenario.instance, one.usd(ways[one].cold_share or 0.0)
    wins = kind.usd_per_hour / usd
    return Comparison(
        load,
        (
            *(ways[functions] for functions in (one, snapshot, ready, *divided)),
            alone,
            *map(ways.__getitem__, endpoint),
            mixed,
        ),
        scenario.slo_ms,
        kind,
        one.name,
        usd,
        wins if wins <= kind.qps * S_PER_HOUR else None,
        serving.windows,
        serving.period_s,
    )


def _order(way: ServingWay, slo_ms: float) -> tuple[bool, float]:
    """Return what is least for the way to choose: within the SLO by dollars, else by its slowest queries."""
    slowest = way.p99_ms or math.inf
    return slowest > slo_ms, way.month_usd if slowest <= slo_ms else slowest
