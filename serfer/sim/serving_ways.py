"""Ways to serve a load, side by side: dollars a month, latencies, cold queries and those that are not answered.

    one function, the same with SnapStart, with provisioned environments ─┐
    a plan's stages or gangs, and the driver function that waits for them ─┼─ query by query (queries.py), the whole
    instances that are always on, SageMaker Serverless ────────────────────┘  load or its busiest and median part
    functions and instances, by a policy ── the level of rates (rates.py), and the same parts query by query

Dollars are those of the load, for a month of it. Times of functions and of the instance are predicted by one model
(cost_model.py), and so are prices; what is drawn are arrivals within a row of the load and invocations' tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from serfer.control.policies import DEFAULT
from serfer.control.policies.fixed import Serverless
from serfer.control.policy import Observation, Policy, ProvisioningPlan, on_demand
from serfer.control.router import Router
from serfer.control.scenario import S_PER_HOUR, InstanceType, LambdaTarget, Market, Scenario
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import (
    HOURS_A_MONTH,
    TASK_SECONDS,
    GangPrice,
    Latency,
    Platform,
    billed_usd,
    plan_load,
    price_plan,
    standing_usd,
)
from serfer.core.costs.pricing import uses_store
from serfer.core.costs.starting_ways import starting_ways
from serfer.core.costs.vcpus import compute_seconds
from serfer.core.errors import UsageError
from serfer.core.plan import CONTAINER, Plan
from serfer.core.units import MS_PER_S
from serfer.sim.driver_limits import DriverLimits
from serfer.sim.fleet import Purchase
from serfer.sim.hours import Window, windows_of
from serfer.sim.loads.arrivals import arrivals_in_steps
from serfer.sim.queries import QueriesResult, QueriesRun, warm_up_s
from serfer.sim.rates import PERIOD_S, Progress, silent, steps_of
from serfer.sim.service_times import Quantiles, ServiceTimes
from serfer.sim.simulate import DetailedRun, RunOptions, SimInput, run_seeds
from serfer.sim.traces import Floats, Trace

MOST_QUERIES: Final = 300_000
"""Queries of a load that is simulated whole; of a larger one, its busiest and its median part are."""
_MOST_DECISIONS: Final = 20_000
_SECONDS_A_MONTH: Final = S_PER_HOUR * HOURS_A_MONTH
_MB_PER_GB: Final = 1024
_POINTS: Final = 1000  # of a latency's distribution
_LAST: Final = 0.9999  # the largest quantile that is drawn
_COVERED: Final = 0.99  # of the queries, that find a provisioned environment
_LAUNCH_MS: Final = 5.0  # of a batch on a GPU besides its images, assumed
_BATCHES: Final = (1, 4, 16)
_LOADED: Final = 0.9  # the share of what an instance sustains that counts
_NOTABLE: Final = 0.001  # of the queries
_CENTS: Final = 2  # digits of dollars
_SLO_MS: Final = 1000.0
_SLO_TIMES: Final = 4.0
_SHORTEST_WINDOW_S: Final = 10.0


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions that serve a load: what a query takes and costs, warm and where it finds nothing warm.

    `memory_mb` is that of all environments of a query, `environments` how many its largest step has at once,
    `month_usd` what is paid for without queries. Of `provisioned` environments, a warm query costs `provisioned_usd`.
    """

    name: str
    memory_mb: int
    warm: Latency
    cold_s: float
    warm_usd: float
    cold_usd: float
    environments: int
    concurrency: int
    month_usd: float = 0.0
    provisioned: int = 0
    provisioned_usd: float = 0.0

    def usd(self, cold_share: float) -> float:
        """Return dollars of a query on average, of which a share finds nothing warm."""
        return self.warm_usd + cold_share * (self.cold_usd - self.warm_usd)

    @property
    def times(self) -> ServiceTimes:
        """A query's seconds to draw from."""
        shares = np.minimum(np.linspace(0, 1, _POINTS + 1), _LAST)
        known = np.cumsum(self.warm.probability)
        values = self.warm.least + self.warm.step * np.searchsorted(known, shares)
        adds = max(self.cold_s - self.warm.mean, 0.0)
        return ServiceTimes(Quantiles(values), Quantiles.always(adds), "predicted", one_task=True)


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
        """Return the fields as plain JSON values."""
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
        """Whether every query of the load was simulated."""
        return self.windows[0].name == "whole"

    @property
    def queries_a_month(self) -> float:
        """Queries of a month of such a load."""
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
        """Return what `serfer cost --log --json` prints."""
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


def one_function(whole: Plan, facts: AwsFacts) -> Functions:
    """Return a network as one function, of its plan of one task."""
    [stage] = whole.stages
    return replace(_functions(whole, facts), name=f"one function of {stage.memory_mb:,} MB")


def _functions(plan: Plan, facts: AwsFacts) -> Functions:
    platform = Platform.over(facts, plan.store)
    warm, cold = price_plan(plan, platform), price_cold(plan, platform)
    most = max(stage.tasks for stage in warm.stages)
    return Functions(
        name=plan.model,
        memory_mb=sum(stage.tasks * stage.memory_mb for stage in cold.stages),
        warm=warm.latency,
        cold_s=cold.seconds,
        warm_usd=warm.usd,
        cold_usd=cold.usd,
        environments=most,
        concurrency=max(facts.functions.concurrency // most, 1),
        month_usd=standing_usd(platform) if uses_store(plan, facts) else 0.0,
    )


def with_snapstart(whole: Plan, plain: Functions, facts: AwsFacts) -> Functions:
    """Return one function whose environments start from a snapshot, its weights where the plan has them."""
    place = whole.stages[0].weights_in
    ways = starting_ways(whole, Platform.over(facts, whole.store))
    way = next(way for way in ways if way.snapstart and way.weights_in == place)
    return replace(
        plain, name="  and SnapStart", cold_s=way.cold_seconds, cold_usd=way.cold_usd, month_usd=way.month_usd
    )


def with_provisioned(whole: Plan, plain: Functions, count: int, facts: AwsFacts) -> Functions:
    """Return one function with so many environments that stay initialised."""
    functions, memory = facts.functions, whole.stages[0].memory_mb
    billed_s = price_plan(whole, Platform.over(facts, whole.store)).stages[0].billed_s
    cheaper = replace(functions, price_gb_second=functions.price_provisioned_second)
    saved = float(billed_usd(memory, billed_s, functions) - billed_usd(memory, billed_s, cheaper))
    standing = count * memory / _MB_PER_GB * _SECONDS_A_MONTH * functions.price_provisioned
    return replace(
        plain,
        name=f"  and {count:,} provisioned",
        provisioned=count,
        provisioned_usd=plain.warm_usd - saved,
        month_usd=standing,
    )


def split_functions(plan: Plan, facts: AwsFacts, driver_mb: int) -> Functions:
    """Return a plan's functions, and a driver function of `driver_mb` that waits for them in every query."""
    plain = _functions(plan, facts)
    priced = price_plan(plan, Platform.over(facts, plan.store))
    kind = "gangs" if any(isinstance(stage, GangPrice) for stage in priced.stages) else "stages"
    tasks = sum(stage.tasks for stage in priced.stages)
    driver, services = facts.functions, facts.services

    def waits(seconds: float) -> float:
        return driver.price_request + float(billed_usd(driver_mb, seconds + services.driver_seconds, driver))

    return replace(
        plain,
        name=f"split: {len(priced.stages)} {kind}, {tasks} tasks" + (f", {plan.store}" if plain.month_usd else ""),
        warm_usd=plain.warm_usd + waits(plain.warm.mean),
        cold_usd=plain.cold_usd + waits(plain.cold_s + services.driver_init),
    )


def sagemaker_serverless(whole: Plan, facts: AwsFacts) -> Functions | None:
    """Return SageMaker Serverless Inference with the function's memory in whole GB; None where it has too little.

    It is taken to compute and to answer as fast as a function of that memory does, and to start as one from a container
    image; starts are not billed.
    """
    services, gigabytes = facts.services, math.ceil(whole.stages[0].memory_mb / _MB_PER_GB)
    memory_mb = gigabytes * _MB_PER_GB
    if memory_mb > services.sagemaker_memory_max:
        return None
    platform = Platform.over(facts, whole.store)
    image = replace(whole, stages=tuple(replace(stage, weights_in=CONTAINER) for stage in whole.stages))
    warm = price_plan(whole, platform, memory_mb)
    endpoint = replace(facts.functions, price_gb_second=services.price_sagemaker_gb_second)
    moved = (services.upload_bytes + services.answer_bytes) * services.price_sagemaker_byte
    usd = float(billed_usd(memory_mb, warm.stages[0].billed_s, endpoint)) + moved
    return Functions(
        name=f"SageMaker Serverless, {gigabytes} GB",
        memory_mb=memory_mb,
        warm=warm.latency,
        cold_s=price_cold(image, platform, memory_mb).seconds,
        warm_usd=usd,
        cold_usd=usd,
        environments=1,
        concurrency=services.sagemaker_concurrency,
    )


def predicted_instance(whole: Plan, name: str, facts: AwsFacts, slo_ms: float | None = None) -> Scenario:
    """Return a scenario with an instance type that computes a network whole, as fast as is predicted.

    On vCPUs that is image by image, by the operator profiles; a GPU takes batches, and is so many vCPUs. `slo_ms` is
    by default a second, or four times what an image takes. Raises UsageError for a type whose speed or price is not
    known, and for an SLO that one image after another misses.
    """
    if name not in facts.instances or name not in (*facts.vcpus, *facts.gpu_vcpus):
        known = ", ".join((*facts.vcpus, *facts.gpu_vcpus))
        raise UsageError(
            f"the speed of {name} is not predicted, only that of {known}: measure it there with serfer study tune, and "
            "give --scenario FILE.toml"
        )
    batches = _on_vcpus(whole, facts.vcpus[name]) if name in facts.vcpus else _on_gpu(whole, facts.gpu_vcpus[name])
    image_ms = batches[0][1]
    slo_ms = max(_SLO_MS, _SLO_TIMES * image_ms) if slo_ms is None else slo_ms
    if 2 * image_ms > slo_ms:
        raise UsageError(f"--slo-ms {slo_ms:g} has no room for two images, {image_ms:.0f} ms each on {name}: give more")
    services = facts.services
    kind = InstanceType(
        name=name,
        usd_per_hour=facts.instances[name],
        spot_usd_per_hour=0.0,
        boot_s=services.instance_boot,
        min_billing_s=services.instance_least,
        qps=1.0,
        batches=batches,
    )
    kind = replace(kind, qps=_LOADED * kind.sustained_qps(slo_ms))
    return Scenario(slo_ms, LambdaTarget(1.0, 1.0, 0.0, 1, 1.0, 0.0), (kind,))  # Lambda is what functions say


def _on_vcpus(whole: Plan, vcpus: int) -> tuple[tuple[int, float], ...]:
    load = plan_load(whole, 0)
    return ((1, MS_PER_S * (TASK_SECONDS + float(compute_seconds(load.serial_s, load.parallel_s, vcpus)[0]))),)


def _on_gpu(whole: Plan, vcpus: float) -> tuple[tuple[int, float], ...]:
    load = plan_load(whole, 0)
    image_ms = MS_PER_S * float(load.serial_s[0] + load.parallel_s[0]) / vcpus
    return tuple((images, _LAUNCH_MS + images * image_ms) for images in _BATCHES)


class _AlwaysOn:
    """A policy that keeps so many instances."""

    name = "always-on"

    def __init__(self, kind: InstanceType, count: int) -> None:
        self._plan = on_demand(kind, count, "always on")

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Want as many."""
        del seen
        return self._plan


@dataclass(frozen=True)
class Serving:
    """The simulation of ways to serve a load, all in the same windows and by one seed; `scenario` has the instance."""

    load: Trace
    scenario: Scenario
    facts: AwsFacts
    seed: int = 0

    @property
    def windows(self) -> tuple[Window, ...]:
        """The parts that are simulated query by query: as long as they may be."""
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
        """Return the scenario with Lambda as functions have it."""
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
        growth = max(self.facts.functions.growth // functions.environments, 1)
        limits = DriverLimits(growth=growth, provisioned=functions.provisioned)
        found = []
        for window in self.windows:
            begin = max(0.0, window.begin_s - warm_up_s(scenario))
            times = _arrivals(self.load, begin, window.end_s, self.seed)
            router = Router(scenario, policy, overflow=not launches)
            run = QueriesRun(scenario, router, functions.times, launches, self.seed, limits=limits)
            found.append(run.through(times, begin, window))
        return found

    def on_functions(self, functions: Functions) -> ServingWay:
        """Serve the load on functions alone."""
        results = self.results(functions)
        came = max(sum(one.queries for one in results), 1)
        cold = sum(one.cold_starts for one in results) / came
        paid = sum(one.on_serverless for one in results) / came
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
        """Serve the load on functions and instances, by the policy that is followed by default."""
        scenario = self.target(functions, usd_per_query)
        load = self.load.resampled(self.period_s)
        sim_input = SimInput(load, "", scenario, "none", 1.0, 0.0)
        detailed = DetailedRun(functions.times, self.window_s)
        [run] = run_seeds(sim_input, DEFAULT, RunOptions(self.period_s), (self.seed,), detailed, progress)
        came = max(sum(one.queries for one in run.windows), 1)
        cold = sum(one.cold_starts for one in run.windows) / came
        month = run.outcome.cost_usd * _SECONDS_A_MONTH / load.seconds + functions.month_usd
        return self._way(name, month, run.windows, cold)

    @property
    def period_s(self) -> float:
        """Seconds between two decisions of the policy: more for a load that lasts longer."""
        return max(PERIOD_S, math.ceil(self.load.seconds / _MOST_DECISIONS))

    def provisioned(self, functions: Functions) -> int:
        """Return how many environments 99% of the queries find free: those that run at once, and their own."""
        running = np.concatenate([*self._running(functions)])
        wanted = int(np.quantile(running, _COVERED, method="higher")) + 1 if running.size else 1
        return min(wanted, functions.concurrency)

    def covered(self, functions: Functions, count: int) -> float:
        """Return the share of the queries that find one of so many environments free."""
        running = np.concatenate([*self._running(functions)])
        return float((running < count).mean()) if running.size else 1.0

    def _running(self, functions: Functions) -> Iterator[Floats]:
        """Yield how many warm queries run as each comes: (queries,)."""
        for window in self.windows:
            times = _arrivals(self.load, window.begin_s, window.end_s, self.seed)
            ended = np.searchsorted(times + functions.warm.mean, times, side="right")
            yield np.asarray(np.arange(len(times)) - ended, dtype=np.float64)

    def _way(
        self, name: str, month_usd: float, results: Sequence[QueriesResult], cold_share: float | None
    ) -> ServingWay:
        latencies = np.concatenate([one.latencies_s for one in results])
        came = max(sum(one.queries for one in results), 1)
        answered = latencies[latencies <= self.facts.services.api_timeout]
        p50, p99 = (MS_PER_S * np.quantile(answered, (0.5, 0.99))).tolist() if answered.size else (None, None)
        return ServingWay(name, month_usd, p50, p99, cold_share, max(0.0, 1 - len(answered) / came))


def _arrivals(load: Trace, begin_s: float, end_s: float, seed: int) -> Floats:
    """Return when queries come between two times of a load, in seconds of the load, ascending: (queries,)."""
    part = load.cut(load.begin_s + begin_s, load.begin_s + end_s)
    rng = np.random.default_rng(seed)
    counts = arrivals_in_steps(steps_of(part, part.seconds), rng)
    starts = np.repeat(part.starts_s[:-1], counts)
    lengths = np.repeat(part.durations_s, counts)
    return np.sort(starts + rng.random(len(starts)) * lengths) + begin_s


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
