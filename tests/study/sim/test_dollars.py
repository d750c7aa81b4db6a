"""Dollars query by query less those of the level of rates, part by part, as docs/explanation/policies.md has them."""

import tomllib
from dataclasses import dataclass

import numpy as np
import pytest

from serfer.control.policies import make_policy
from serfer.control.router import Reason, Router
from serfer.control.scenario import parse_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.loads.steps import steps_of
from serfer.cost.loads.trace import Trace
from serfer.cost.queries import QueriesRun
from serfer.cost.service_times import scenario_times
from serfer.cost.windows import Window
from serfer_bench.study.loads.generators import generate
from serfer_bench.study.sim.rates import run_rates
from serfer_bench.study.sim.time_series import integrated
from tests.control.worlds import TWO_TYPES

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
