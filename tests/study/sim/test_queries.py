"""Query by query: no query is lost, batches and boots take their time, and Lambda's environments stay warm."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.dispatch import Batching
from serfer.control.policies import make_policy
from serfer.control.policy import InstanceCount, InstanceGroup, InstanceState
from serfer.control.router import Router
from serfer.control.scenario import Market, parse_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.cost import queries
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.fleet import CreditBalance, Purchase, SpotLosses
from serfer.cost.loads.steps import steps_of
from serfer.cost.queries import QueriesRun
from serfer.cost.service_times import Quantiles, ServiceTimes, scenario_times
from serfer.cost.windows import Window, windows_of
from serfer_bench.study.policies.mark.policy import MarkSpot
from serfer_bench.study.sim.fleet_history import history_of
from tests.control.worlds import CREDITS, TWO_TYPES
from tests.study.sim.worlds import Bought, Scripted, scenario, trace

FIXED = ServiceTimes(Quantiles.always(0.12), Quantiles.always(0.8), "a test", one_task=True)


def ran(load, world, policy, *, launched=(), window=None, seed=0, losses=None, limits=None, **options):
    window = window or Window("whole", 0.0, load.seconds)
    launches = [(time, Purchase(world.instance, Market.ON_DEMAND)) for time in launched]
    run = QueriesRun(world, Router(world, policy, **options), FIXED, launches, seed, losses, limits)
    return run.over(steps_of(load, 5), 0.0, window)


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.sampled_from([3.0, 20.0]), st.floats(0, 400)), min_size=1, max_size=8),
    wanted=st.lists(st.integers(0, 4), min_size=1, max_size=10),
    concurrency=st.sampled_from([1, 5, 1000]),
    overflow=st.booleans(),
    limits=st.builds(
        DriverLimits,
        drivers=st.integers(1, 3),
        slots=st.sampled_from([None, 1, 20]),
        hedge=st.booleans(),
        growth=st.sampled_from([1.0, 100.0, float("inf")]),
    ),
)
def test_every_query_is_answered_refused_or_throttled_exactly_once(rows, wanted, concurrency, overflow, limits):
    load, world = trace(*zip(*rows, strict=True)), scenario(boot_s=4.0, concurrency=concurrency)
    window = Window("part", 5.0, load.seconds)
    result = ran(load, world, Scripted(wanted), overflow=overflow, window=window, limits=limits)
    assert result.queries == len(result.latencies_s) + result.refused + result.throttled + result.failed
    assert result.on_instances <= len(result.latencies_s)
    assert result.batches <= result.on_instances <= 8 * result.batches


def test_results_depend_on_the_seed():
    load, world = trace([60], [50]), scenario()
    one, same, other = (ran(load, world, make_policy("ski-rental", world), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.latencies_s, same.latencies_s)
    assert one.queries == other.queries == 3000
    assert not np.array_equal(one.latencies_s, other.latencies_s)


def test_idle_instance_answers_at_once_or_waits_as_planned():
    result = ran(trace([1000], [0.1]), scenario(), Scripted([1]), launched=[-1000.0])
    assert result.on_instances == result.queries == result.batches > 50
    assert np.allclose(result.latencies_s, 0.014, atol=0.014)
    assert np.median(result.latencies_s) == pytest.approx(0.014)
    policy = Scripted([1], batching={"gpu": Batching(8, 0.1)})
    result = ran(trace([1000], [0.1]), scenario(), policy, launched=[-1000.0])
    assert np.median(result.latencies_s) == pytest.approx(0.114)
    full = ran(trace([100], [100]), scenario(), policy, launched=[-1000.0])
    assert full.on_instances / full.batches > 6


def test_a_policy_is_told_the_latencies_of_the_queries_since_its_last_decision():
    world, policy = scenario(), Scripted([1])
    result = ran(trace([60, 60], [100, 600]), world, policy, launched=[-1000.0], overflow=False)
    told = [one for one in policy.latencies if one.answered]
    late = int((result.latencies_s > world.slo_ms / 1000).sum())
    assert 0 < sum(one.late for one in told) <= late < result.queries
    assert sum(one.answered for one in told) <= len(result.latencies_s)
    assert all(one.late == 0 and one.p99_ms < world.slo_ms for one in told[:12])
    assert told[-1].late == told[-1].answered  # instances alone: the queue grows
    assert told[-1].p99_ms > world.slo_ms


def test_a_burstable_instance_computes_at_its_baseline_without_credits():
    first = scenario().instance

    def median_s(at_launch):
        t2 = replace(first, name="t2", boot_s=0.0, credits=replace(CREDITS, at_launch=at_launch))
        world = replace(scenario(), instances=(first, t2))
        router = Router(world, Bought(InstanceCount("t2", Market.ON_DEMAND, 1)), overflow=False)
        run = QueriesRun(world, router, FIXED, [(0.0, Purchase(t2, Market.ON_DEMAND))], 0)
        return np.median(run.over(steps_of(trace([60], [20]), 5), 0.0, Window("whole", 0.0, 60.0)).latencies_s)

    assert median_s(60.0) < 0.03
    assert median_s(0.0) > 5 * 0.014


@given(spans=st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 900)), min_size=1, max_size=20))
def test_credits_are_never_overdrawn_and_a_batch_takes_its_own_time_to_five_times_that(spans):
    balance, now, computed = CreditBalance(CREDITS, 0.0), 0.0, 0.0
    for idle_s, seconds in spans:
        took = balance.compute(now + idle_s, seconds)
        now, computed = now + idle_s + took, computed + seconds
        assert seconds * (1 - 1e-9) <= took <= seconds / CREDITS.baseline * (1 + 1e-9)
    spent = computed * CREDITS.vcpus / 60
    assert spent <= (CREDITS.at_launch + now * CREDITS.per_hour / 3600) * (1 + 1e-9)


def test_a_new_t2_sustains_its_full_speed_for_the_papers_half_hour_and_not_for_an_hour():
    assert CREDITS.baseline == pytest.approx(0.2)
    assert CreditBalance(CREDITS, 0.0).compute(0.0, 1800.0) == 1800.0
    assert CreditBalance(CREDITS, 0.0).compute(0.0, 3600.0) == pytest.approx(2250 + 1350 / 0.2)


def test_a_busy_instance_fills_its_batches_and_what_it_cannot_serve_in_time_runs_on_lambda():
    result = ran(trace([60], [100]), scenario(), Scripted([1]), launched=[-1000.0])
    assert result.on_instances / result.batches > 3
    assert (result.latencies_s > 0.3).sum() <= result.cold_starts  # of the few that spilled over
    result = ran(trace([60], [300]), scenario(), Scripted([1]), launched=[-1000.0])
    assert 0 < result.on_instances < result.queries == len(result.latencies_s)
    on_lambda = result.queries - result.on_instances
    assert np.isin(np.round(result.latencies_s, 9), [0.12, 0.92]).sum() >= on_lambda


def test_instance_serves_from_its_boot_to_its_last_queued_query():
    world = scenario(boot_s=12.0)
    load = trace([20], [100])
    early = ran(load, world, Scripted([1]), window=Window("whole", 0.0, 20.0))
    assert early.launches == 1
    came_after = 3 / 20  # of the load: from 5 + 12 s on
    assert early.on_instances == pytest.approx(came_after * early.queries, rel=0.2)
    world = scenario(slo_ms=10_000.0)
    result = ran(trace([10], [400]), world, Scripted([0]), launched=[-1000.0])
    assert result.on_instances > 8
    assert len(result.latencies_s) == result.queries


def test_the_first_queries_are_cold_and_environments_stay_warm_for_their_time_until_a_window_that_is_measured():
    result = ran(trace([100], [20]), scenario(), Scripted([0]))
    assert 0 < result.cold_starts == (result.latencies_s > 0.5).sum() < 30
    always = ran(trace([100], [20]), scenario(keep_alive_s=0.0), Scripted([0]))
    assert always.cold_starts == always.queries
    assert always.idle_gb_s == 0 < result.idle_gb_s < 100 * result.cold_starts
    late = ran(trace([100], [20]), scenario(), Scripted([0]), window=Window("late", 50.0, 100.0))
    assert late.cold_starts <= 2
    assert late.queries == pytest.approx(1000, rel=0.15)


def test_provisioned_environments_stay_without_queries_and_others_only_for_their_time():
    times = np.array([0.5, 700.5, 1400.5, 1400.51])  # further apart than environments are kept
    for provisioned, cold in ((0, 4), (1, 1), (2, 0)):
        limits = DriverLimits(provisioned=provisioned)
        run = QueriesRun(scenario(), Router(scenario(), Scripted([0])), FIXED, [], 0, limits=limits)
        assert run.through(times, 0.0, Window("whole", 0.0, 1500.0)).cold_starts == cold
    times = np.array([1.0, 101.0, 102.0, 103.0])
    run = QueriesRun(scenario(), Router(scenario(), Scripted([0])), FIXED, [], 0)
    result = run.through(times, 0.0, Window("part", 100.0, 200.0))
    assert (result.queries, result.cold_starts, len(result.latencies_s)) == (3, 0, 3)


def test_a_function_gains_so_many_environments_in_ten_seconds_and_others_are_tried_again():
    load, world = trace([1, 30], [300, 0]), scenario(concurrency=10_000, keep_alive_s=0.0)
    result = ran(load, world, Scripted([0]), limits=DriverLimits(growth=50))
    at_once = (result.latencies_s < 0.93).sum()
    assert 50 <= at_once <= 55
    assert result.queries == len(result.latencies_s) + result.throttled
    assert 50 < len(result.latencies_s) <= 50 + 5 * 20  # five a second while they are tried again, about 15 s
    assert result.retries > result.throttled > 0
    free = ran(load, world, Scripted([0]))
    assert free.retries == free.throttled == 0


def test_queries_wait_for_a_slot_of_a_driver_and_the_oldest_goes_first():
    load, limits = trace([10, 10], [20, 0]), DriverLimits(drivers=2, slots=1)
    result = ran(load, scenario(), Scripted([0]), limits=limits)
    assert result.cold_starts == 2
    assert result.throttled == result.retries == 0
    assert result.queued > 0.9 * result.queries
    assert len(result.latencies_s) == result.queries
    assert np.all(np.diff(result.latencies_s) < 0.13)  # none was passed by younger ones for long
    assert result.latencies_s.max() > 1.0  # 16.7 a second are answered
    assert ran(load, scenario(), Scripted([0])).queued == 0


def test_late_queries_get_a_duplicate_which_is_paid_for():
    load, world = trace([100], [20]), scenario(keep_alive_s=5.0)
    plain, hedged = (ran(load, world, Scripted([0]), limits=DriverLimits(hedge=hedge)) for hedge in (False, True))
    assert plain.hedges == plain.duplicates == 0
    assert 0 < hedged.hedges == hedged.duplicates <= 4 + 0.05 * hedged.queries
    assert hedged.usd(world) == pytest.approx((hedged.queries + hedged.hedges) * world.serverless.usd_per_query)
    assert (plain.latencies_s > 0.5).sum() == plain.cold_starts
    assert (hedged.latencies_s > 0.5).sum() <= hedged.cold_starts - hedged.hedges
    assert np.isclose(hedged.latencies_s, 0.24 + 0.12).any()  # late after twice the usual time, then as long again


def test_queries_beyond_a_limit_are_refused():
    result = ran(trace([10], [10]), scenario(), Scripted([0]), overflow=False)
    assert result.refused == result.queries > 0
    result = ran(trace([60], [50]), scenario(), Scripted([0]), max_usd_per_hour=1000 * 4e-5)
    assert len(result.latencies_s) == pytest.approx(1000, abs=1)
    assert result.refused == result.queries - len(result.latencies_s)
    result = ran(trace([10], [100]), scenario(concurrency=2), Scripted([0]))
    assert result.throttled > 0
    assert len(result.latencies_s) + result.throttled == result.queries


def test_policy_observes_every_query_with_the_loads_own_counts():
    counts = np.random.default_rng(0).poisson(10, 200).astype(float)
    policy = Scripted([0])
    ran(trace(np.ones(200), counts), scenario(), policy)
    assert [rate for _, rate in policy.seen] == counts.tolist()


def test_windows_are_the_busiest_hour_and_the_median_busy_hour_and_of_too_many_queries_refused(monkeypatch):
    load = trace([3600] * 6, [0, 5, 1, 9, 3, 0])
    assert windows_of(load) == (Window("busiest", 10_800.0, 14_400.0), Window("median", 14_400.0, 18_000.0))
    assert windows_of(trace([100], [1])) == (Window("whole", 0.0, 100.0),)
    assert len(windows_of(trace([7200], [1]))) == 1
    with pytest.raises(UsageError, match="--window-s"):
        windows_of(load, 0)
    monkeypatch.setattr(queries, "MAX_QUERIES", 100)
    with pytest.raises(UsageError, match="--window-s"):
        ran(trace([10], [100]), scenario(), Scripted([0]))


def test_the_scenarios_times_have_its_mean_and_the_published_tail():
    times = scenario_times(scenario().serverless, shipped_aws().functions)
    assert times.warm_s.mean == pytest.approx(0.12)
    assert times.warm_s.at(0.99) - times.warm_s.at(0.5) == pytest.approx(0.005 * np.log(50), rel=0.05)
    draws = times.warm_s.samples(np.random.default_rng(0))
    assert np.mean([next(draws) for _ in range(20_000)]) == pytest.approx(0.12, rel=0.01)
    assert "aws.toml" in times.source


def test_queries_that_wait_at_a_lost_instance_are_answered_by_lambda():
    world = scenario(boot_s=5.0)
    result = ran(trace([600], [40]), world, Scripted([2]), losses=SpotLosses(120.0, 3, on_demand=True))
    assert result.launches > 4
    assert result.refused == result.throttled == 0
    assert len(result.latencies_s) == result.queries


def test_queries_go_to_the_type_that_answers_first():
    world = parse_scenario(tomllib.loads(TWO_TYPES))
    both = (InstanceCount("g4dn.xlarge", Market.ON_DEMAND, 1), InstanceCount("g5.xlarge", Market.SPOT, 1))
    policy = Bought(*both)
    result = ran(trace([500], [200]), world, policy, window=Window("all", 300.0, 500.0))
    assert result.on_instances > 0.95 * result.queries  # the first type alone sustains 60 queries/s
    assert {(group.kind, group.market) for group in policy.fleets[-1]} == {(one.kind, one.market) for one in both}


def test_environments_that_a_plan_wants_are_started_once_and_kept():
    load, world = trace([20, 20, 2000], [0, 100, 0]), scenario(keep_alive_s=600.0)
    window = Window("all", 0.0, 40.0)
    cold, warm = (ran(load, world, Scripted([0], count), window=window) for count in (0, 40))
    assert cold.cold_starts > 10  # 12 queries at once on average
    assert (warm.cold_starts, cold.pings) == (0, 0)
    # in 2,040 s each is started again twice, after 600 s without a query
    assert 40 * 3 <= warm.pings <= 40 * 4
    assert warm.usd(world) == pytest.approx((warm.queries + warm.pings) * world.serverless.usd_per_query)
    assert ran(load, scenario(concurrency=7), Scripted([0], 40), window=window).pings == pytest.approx(7 * 3, abs=7)


@pytest.mark.parametrize(("paid_for", "pings"), [(25, 20), (9, 0)])
def test_pings_are_within_the_ceiling_all_or_none(paid_for, pings):
    load, world = trace([1800], [0]), scenario(keep_alive_s=600.0)
    assert ran(load, world, Scripted([0], 10), max_usd_per_hour=paid_for * 4e-5).pings == pings


@pytest.mark.parametrize(("share", "lost"), [(0.2, 2), pytest.param(0.8, 8, marks=pytest.mark.weekly)])
def test_stand_ins_cover_an_interruption_until_spot_instances_are_back(share, lost):
    world, interrupted = scenario(), 480.0
    kind = replace(world.instance, qps=10.0, batches=((1, 45.0), (4, 145.0)))
    stand_in = replace(kind, name="t2", qps=5.0, boot_s=90.0, spot_usd_per_hour=0.0, credits=CREDITS)
    world = replace(world, instances=(kind, stand_in))
    load, spot = trace([1000], [97]), Purchase(kind, Market.SPOT)

    def run(world):
        policy = MarkSpot(world)
        policy.resume([InstanceGroup("gpu", Market.SPOT, InstanceState.SERVING, 10)])
        fleet, losses = [(number - 500.0, spot) for number in range(10)], SpotLosses(shares=((interrupted, share),))
        run = QueriesRun(world, Router(world, policy), FIXED, fleet, 0, losses)
        result = run.over(steps_of(load, 5), 0.0, Window("transient", interrupted, interrupted + 300))
        return result, history_of(run._fleet, load.seconds)

    covered, history = run(world)
    assert lost <= history.lost.sum() <= lost + 1  # the load's own spikes may have launched one more before
    stand_ins = [row for row, at in enumerate(history.bought) if history.purchases[at].kind.burstable]
    assert len(stand_ins) == 2 * history.lost.sum()
    assert (history.launched_s[stand_ins] == interrupted - 120).all()  # at the notice
    assert (history.stopped_s[stand_ins] < interrupted + 60).all()  # the others were launched then, and boot for 120 s
    bare, _ = run(replace(world, instances=(kind,)))
    assert (covered.latencies_s <= 0.3).mean() >= 0.98
    assert covered.on_serverless <= bare.on_serverless
