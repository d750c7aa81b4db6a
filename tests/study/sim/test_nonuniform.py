"""Instances with batch sizes of their own, query by query: windows, full batches, and the shares of section 3.2."""

from collections import Counter

import numpy as np
import pytest

from serfer.control.dispatch import window_s
from serfer.control.policy import InstanceCount, ProvisioningPlan
from serfer.control.router import SERVERLESS, Router
from serfer.control.scenario import Market
from serfer.cost.fleet import Purchase
from serfer.cost.loads.steps import Steps
from serfer.cost.queries import QueriesRun
from serfer.cost.windows import Window
from serfer_bench.study.policies.nonuniform.rate_dispatcher import RateDispatcher, shares
from tests.study.policies.nonuniform.test_rate_dispatcher import WORLD, Place
from tests.study.sim.test_queries import FIXED

GPU = WORLD.instance


class Sized:
    """A policy that wants instances with these batch sizes, and dispatches by their rates."""

    name = "sized"

    def __init__(self, *batches):
        counts = Counter(batches)
        self._wanted = tuple(InstanceCount("gpu", Market.ON_DEMAND, counts[batch], batch) for batch in counts)

    def dispatcher(self):
        return RateDispatcher(WORLD)

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
    router = CountingRouter(WORLD, Sized(*batches))
    launches = [(-100.0, Purchase(GPU, Market.ON_DEMAND))] * len(batches)
    steps = Steps(np.ones(seconds), np.full(seconds, float(rate)), np.arange(seconds, dtype=np.int32))
    run = QueriesRun(WORLD, router, FIXED, launches, seed=1)
    return router, run.over(steps, 0.0, Window("busiest", 0.0, float(seconds)))


def test_queries_divide_by_the_rates_of_the_instances():
    router, _ = simulated(180, 16, 2)
    expected = shares(180.0, [Place("a", 0, 16), Place("b", 0, 2)], WORLD)
    total = router.sent.total()
    assert router.sent[16] / total == pytest.approx(expected.of["a"], abs=0.02)
    assert router.sent[2] / total == pytest.approx(expected.of["b"], abs=0.02)
    assert router.sent[None] / total < 0.02


def test_what_exceeds_the_upper_bounds_runs_on_lambda_and_the_rest_in_time():
    router, result = simulated(400, 8)
    expected = shares(400.0, [Place("a", 0, 8)], WORLD)
    assert router.sent[None] / router.sent.total() == pytest.approx(expected.rest, abs=0.03)
    assert np.mean(result.latencies_s * 1000 <= WORLD.slo_ms) > 0.99


def test_an_instance_waits_for_full_batches_as_long_as_its_window():
    _, alone = simulated(2, 8)
    waited = window_s(GPU, 8, WORLD.slo_ms)
    assert np.quantile(alone.latencies_s, 0.5) >= waited
    assert alone.latencies_s.max() * 1000 <= WORLD.slo_ms
    _, busy = simulated(120, 8)
    assert busy.on_instances / busy.batches > 7


def test_instances_without_a_batch_size_start_at_once():
    _, alone = simulated(2, 0)
    assert alone.latencies_s.max() < 3 * GPU.batch_ms(1) / 1000
