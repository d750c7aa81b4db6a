"""Dollars of both levels, what drivers and Lambda allow, and instances with batch sizes of their own."""

import math
import tomllib
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.dispatch import window_s
from serfer.control.policies import make_policy
from serfer.control.policy import InstanceCount, ProvisioningPlan
from serfer.control.router import SERVERLESS, Reason, Router
from serfer.control.scenario import Market, parse_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.hedging import LearntHedging
from serfer.cost.driver_limits import DriverLimits, Growth, KnownHedging
from serfer.cost.fleet import Purchase
from serfer.cost.loads.steps import Steps, steps_of
from serfer.cost.loads.trace import Trace
from serfer.cost.queries import QueriesRun
from serfer.cost.service_times import scenario_times
from serfer.cost.windows import Window
from serfer_bench.study.loads.generators import generate
from serfer_bench.study.policies.nonuniform.rate_dispatcher import RateDispatcher, shares
from serfer_bench.study.sim.rates import run_rates
from serfer_bench.study.sim.time_series import integrated
from tests.control.worlds import TWO_TYPES
from tests.study.policies.test_nonuniform import WORLD as SIZED
from tests.study.policies.test_nonuniform import Place
from tests.study.sim.test_queries import FIXED

WORLD = parse_scenario(tomllib.loads(TWO_TYPES))


@dataclass
class Parts:
    """Dollars: at the level of rates, query by query, and four parts of the difference.

    `steps`: rates again, with the counts of queries that came in each step. `clusters`: queries on Lambda in steps in
    which more ran there than the load has beyond `qps` times the instances that serve; `fill`: in which fewer did.
    """

    rates: float
    queries: float
    instances_as_rates: float
    steps: float
    clusters: float
    fill: float
    duplicates: float


class Watched(QueriesRun):
    """A run that counts what Lambda takes in each step."""

    def _step(self, times, end, seconds):
        before = self._router.counts[Reason.ROOM]
        super()._step(times, end, seconds)
        self.on_lambda.append(len(times) - (self._router.counts[Reason.ROOM] - before))


class Seen:
    """A policy whose observations are kept."""

    def __init__(self, policy):
        self.policy, self.name, self.load = policy, policy.name, []

    def observe(self, seen):
        self.load.append((seen.elapsed_s, seen.rate))
        return self.policy.observe(seen)


def usd_of(run):
    return run.serverless_usd + run.instances_usd - run.min_billing_usd


def parts_of(load, world, policy, seed, period_s=5.0):
    at_rates = run_rates(load, world, make_policy(policy, world), period_s=period_s)
    seen = Seen(make_policy(policy, world))
    times, limits = scenario_times(world.serverless, shipped_aws().functions), DriverLimits(hedge=True, growth=1000)
    run = Watched(world, Router(world, seen), times, [], seed, limits=limits)
    run.on_lambda = []
    result = run.over(steps_of(load, period_s), 0.0, Window("whole", 0.0, load.seconds))
    durations, rates = map(np.array, zip(*seen.load, strict=True))
    again = run_rates(Trace("as it came", durations, rates), world, make_policy(policy, world), period_s=period_s)
    edges = np.concatenate(([0.0], np.cumsum(durations)))
    more = np.array(run.on_lambda) - integrated(again.timeline.times_s, again.timeline.serverless, edges)
    price = world.serverless.usd_per_query
    return Parts(
        rates=usd_of(at_rates),
        queries=result.usd(world),
        instances_as_rates=again.instances_usd - again.min_billing_usd - result.instances_usd,
        steps=usd_of(again) - usd_of(at_rates),
        clusters=float(more[more > 0].sum()) * price,
        fill=float(more[more < 0].sum()) * price,
        duplicates=result.duplicates * price,
    )


@pytest.mark.parametrize("policy", ["break-even", "ski-rental", "target-tracking"])
def test_the_parts_add_up_to_the_difference(policy):
    parts = parts_of(generate("mmpp:hours=0.3,low_s=300,high_s=300,row_s=1"), WORLD, policy, 0)
    assert parts.instances_as_rates == pytest.approx(0.0, abs=1e-9)  # the same load leads to the same fleet
    assert parts.steps == pytest.approx(0.0, abs=1e-9)  # counts are whole: they came as the load has them
    assert parts.queries - parts.rates == pytest.approx(parts.clusters + parts.fill + parts.duplicates)
    assert parts.fill < 0 < parts.duplicates


def test_without_instances_both_levels_pay_the_same_but_for_duplicates():
    parts = parts_of(generate("poisson:hours=0.2,row_s=1"), WORLD, "serverless", 0)
    assert parts.queries - parts.duplicates == pytest.approx(parts.rates)
    assert parts.clusters == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=60)
@given(most=st.integers(1, 20), gaps=st.lists(st.sampled_from([0.0, 0.01, 0.4, 3.0, 60.0]), max_size=80))
def test_no_time_gains_more_environments_than_are_refilled_in_it_and_those_at_once(most, gaps):
    growth, now, taken = Growth(most), 0.0, []
    for gap in gaps:
        now += gap
        if growth.take(now):
            taken.append(now)
    for first, begin in enumerate(taken):
        for last, end in enumerate(taken[first:], first):
            assert last - first + 1 <= most * (1 + (end - begin) / 10) + 1e-6


def test_what_is_not_used_does_not_add_up():
    growth = Growth(10)
    assert [growth.take(1e6) for _ in range(11)] == [True] * 10 + [False]
    assert not growth.take(1e6 + 0.9)
    assert growth.take(1e6 + 1.0)


def test_known_hedging_is_what_drivers_arrive_at_and_a_task_in_time_needs_no_timer():
    learnt, answered = LearntHedging(), 0
    known = KnownHedging([0.1, math.inf], lambda: answered)
    for _ in range(100):
        learnt.learn(0, 0.1)
        answered += 1
    assert known.late_after(0) == learnt.late_after(0) == pytest.approx(0.2)
    assert known.late_after(1) is None
    spent = [sum(each.spend() for _ in range(200)) for each in (learnt, known)]
    assert spent == [9, 9]  # a handful, and one in twenty
    answered += 100
    assert sum(known.spend() for _ in range(200)) == 5
    known = KnownHedging([0.1], lambda: 0)
    known.ends_in_s = 0.15
    assert known.late_after(0) is None
    known.ends_in_s = 0.3
    assert known.late_after(0) == pytest.approx(0.2)
    assert DriverLimits().slots_of_each(1000) == 1000
    assert DriverLimits(slots=16).slots_of_each(1000) == 16


GPU = SIZED.instance


class Sized:
    """A policy that wants instances with these batch sizes, and dispatches by their rates."""

    name = "sized"

    def __init__(self, *batches):
        counts = Counter(batches)
        self._wanted = tuple(InstanceCount("gpu", Market.ON_DEMAND, counts[batch], batch) for batch in counts)

    def dispatcher(self):
        return RateDispatcher(SIZED)

    def observe(self, seen):
        del seen
        return ProvisioningPlan(self._wanted, "as the test says")

    def resume(self, fleet):
        pass


class CountingRouter(Router):
    """A router that notes where queries go, by batch size, once the batch sizes are set."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.sent = Counter()

    def route(self, now, endpoints, in_flight, images=1):
        decision = super().route(now, endpoints, in_flight, images)
        if now > 20:
            batches = {one.name: one.batch for one in endpoints} | {SERVERLESS: None}
            self.sent[batches[decision.targets[0]]] += 1
        return decision


def simulated(rate, *batches, seconds=120):
    router = CountingRouter(SIZED, Sized(*batches))
    launches = [(-100.0, Purchase(GPU, Market.ON_DEMAND))] * len(batches)
    steps = Steps(np.ones(seconds), np.full(seconds, float(rate)), np.arange(seconds, dtype=np.int32))
    run = QueriesRun(SIZED, router, FIXED, launches, seed=1)
    return router, run.over(steps, 0.0, Window("busiest", 0.0, float(seconds)))


def test_queries_divide_by_the_rates_of_the_instances_and_the_rest_runs_on_lambda_in_time():
    router, _ = simulated(180, 16, 2)
    expected = shares(180.0, [Place("a", 0, 16), Place("b", 0, 2)], SIZED)
    total = router.sent.total()
    assert router.sent[16] / total == pytest.approx(expected.of["a"], abs=0.02)
    assert router.sent[2] / total == pytest.approx(expected.of["b"], abs=0.02)
    assert router.sent[None] / total < 0.02
    router, result = simulated(400, 8)
    expected = shares(400.0, [Place("a", 0, 8)], SIZED)
    assert router.sent[None] / router.sent.total() == pytest.approx(expected.rest, abs=0.03)
    assert np.mean(result.latencies_s * 1000 <= SIZED.slo_ms) > 0.99


def test_an_instance_waits_for_full_batches_as_long_as_its_window():
    _, alone = simulated(2, 8)
    waited = window_s(GPU, 8, SIZED.slo_ms)
    assert np.quantile(alone.latencies_s, 0.5) >= waited
    assert alone.latencies_s.max() * 1000 <= SIZED.slo_ms
    _, busy = simulated(120, 8)
    assert busy.on_instances / busy.batches > 7
    _, alone = simulated(2, 0)
    assert alone.latencies_s.max() < 3 * GPU.batch_ms(1) / 1000
