"""MArk as a policy: ahead by the time of a boot, backups where queries are late, stand-ins for spot instances."""

import math
import tomllib
from dataclasses import replace

import pytest

from serfer.control.dispatch import Batching
from serfer.control.policy import InstanceGroup, InstanceState, Interruption, LatencyWindow, Observation, fleet_of
from serfer.control.scenario import Market, parse_scenario
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.mark.forecaster import FORECASTERS
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.policy import Mark, MarkSpot
from tests.control.worlds import CREDITS, QPS, TWO_TYPES, fleet, scenario, seen, steps


class Ramp:
    """A forecaster that knows the load of each of the next minutes: 10 queries/s more in each."""

    def __init__(self):
        self.passed = 0

    def observe(self, peak):
        del peak
        self.passed += 1

    def forecast(self, units):
        return [QPS * (self.passed + unit) for unit in range(1, units + 1)]


def mark(world=None, **options):
    return Mark(world or scenario(), MarkOptions(**options))


def with_ramp(monkeypatch, **options):
    monkeypatch.setitem(FORECASTERS, "ramp", lambda _: Ramp())
    return mark(forecaster="ramp", **options)


def plans(policy, load, step_s=10.0, serving=0):
    return [policy.observe(Observation(0.0, *step, fleet=fleet(serving))) for step in steps(load, step_s)]


def totals(policy, load, step_s=10.0, serving=0):
    return [plan.total for plan in plans(policy, load, step_s, serving)]


def test_instances_are_launched_for_the_load_that_comes_when_they_serve(monkeypatch):
    policy = with_ramp(monkeypatch)  # a boot takes 4 minutes
    on = totals(policy, [(180, 0.0)])
    assert on[5::6] == [5, 6, 7]  # of minutes 5, 6 and 7
    assert on[:5] == [0] * 5
    tau = with_ramp(monkeypatch, lead_units=2)
    assert totals(tau, [(60, 0.0)])[-1] == 3


def test_a_decision_is_made_each_minute_and_an_instance_kept_for_the_cool_down():
    assert totals(mark(), [(60, 0.0), (30, 5 * QPS)], serving=9)[-1] == 0
    assert totals(mark(), [(120, 3 * QPS)], serving=3)[5:] == [3] * 7
    policy = mark()
    policy.resume(fleet(3))
    assert policy.observe(seen(10.0, 0.0)).total == 3
    policy = mark(cooldown_s=300.0)
    assert totals(policy, [(600, 3 * QPS)], serving=3)[-1] == 3
    on = totals(policy, [(1800, 0.0)], serving=3)
    assert on[:29] == [3] * 29
    assert on[-1] <= 1


def test_backups_are_launched_where_less_than_98_percent_of_the_last_queries_were_in_time():
    def late(share):
        window = LatencyWindow(answered=1000, late=round(1000 * share), p99_ms=900.0)
        policy = mark(backups=2)
        return policy.observe(Observation(0.0, 10.0, 100.0, fleet(3), latency=window))

    assert late(0.02).total == 0  # nothing is planned yet
    assert late(0.021).total == 5
    assert "backups, as queries are late" in late(0.021).reason


def test_the_monitor_judges_the_last_queries_and_launches_once_a_minute_and_once_for_each():
    policy = mark(monitor_queries=100, backups=1)
    window = LatencyWindow(answered=50, late=50, p99_ms=900.0)
    seen_late = Observation(0.0, 5.0, 10.0, fleet(1), latency=window)
    assert [number for number in range(26) if "backups" in policy.observe(seen_late).reason] == [1, 13, 25]
    # Of 60 each: at most 2 of any 100 that one of these begins, but 4 of 120.
    late = [LatencyWindow(answered=60, late=count, p99_ms=900.0) for count in (0, 2, 2, 0)]
    then_in_time = [LatencyWindow(1000, 1000, 900.0), *[LatencyWindow(9, 0, 10.0)] * 12]
    for queries, windows, launched in ((100, late, 2), (1000, then_in_time, 0)):
        policy = mark(monitor_queries=queries)
        plans = [policy.observe(Observation(0.0, 20.0, 3.0, fleet(1), latency=window)) for window in windows]
        assert [number for number, plan in enumerate(plans) if "backups" in plan.reason] == [launched]


def test_backups_are_of_the_type_that_is_wanted_and_none_where_none_are():
    world = parse_scenario(tomllib.loads(TWO_TYPES))
    late = Observation(0.0, 10.0, 100.0, (), latency=LatencyWindow(1000, 1000, 900.0))
    policy = Mark(world, MarkOptions(backup_kind="g5.xlarge", backups=3))
    assert ("g5.xlarge", Market.ON_DEMAND) in policy.purchases()
    assert [(one.kind, one.count) for one in policy.observe(late).instances] == [("g5.xlarge", 3)]
    assert mark(backups=0).observe(late).total == 0
    with pytest.raises(UsageError, match=r"t is a type that is not burstable, not p3: the scenario has g4dn\.xlarge"):
        Mark(world, MarkOptions(backup_kind="p3"))


def test_queries_that_come_faster_than_instances_serve_count_as_late_where_latencies_are_not_known():
    policy = mark(monitor_queries=100)
    booting = Observation(0.0, 10.0, 2.0 * QPS, fleet_of(scenario().instance, 1, 1))
    assert "backups" not in policy.observe(booting).reason
    assert "backups" in policy.observe(replace(booting, rate=2.1 * QPS)).reason


def test_decisions_are_the_same_each_time_and_a_scenario_without_a_type_in_time_is_refused():
    load = [(60, 30.0), (600, 55.0), (60, 0.0), (900, 12.0)]
    assert plans(mark(), load) == plans(mark(), load)
    with pytest.raises(InputError, match="no instance type answers an image within slo_ms 5: there are gpu"):
        mark(scenario(slo_ms=5.0))


def test_only_the_first_type_is_used_on_demand_unless_all_types_and_spot_are_wanted():
    world = parse_scenario(tomllib.loads(TWO_TYPES))
    load = [(600, 500.0)]
    first = plans(Mark(world), load)[-1].instances
    assert {(one.kind, one.market) for one in first} == {("g4dn.xlarge", Market.ON_DEMAND)}
    alone = replace(MarkSpot.options, monitor_queries=math.inf)  # backups are on demand
    both = plans(MarkSpot(world, alone), load)[-1].instances
    assert {one.market for one in both} == {Market.SPOT}
    assert sum(one.count * world.kind(one.kind).qps for one in both) >= 500.0
    assert [(one.kind, one.count) for one in both if one.kind == "g5.xlarge"] == [("g5.xlarge", 2)]
    world = burstable()
    cheap = replace(world.instances[1], usd_per_hour=1.0)  # but no candidate
    policy = Mark(replace(world, instances=(world.instance, cheap)), MarkOptions(all_types=True))
    assert {one.kind for one in plans(policy, [(120, 30.0)])[-1].instances} == {"gpu"}


def burstable():
    """Constructed: a small type that stands in, as the paper's t2 instances do, and serves after 100 s."""
    world = scenario()
    spot = replace(world.instance, spot_usd_per_hour=1000.0)
    t2 = replace(spot, name="t2", qps=4.0, boot_s=100.0, spot_usd_per_hour=0.0, credits=CREDITS)
    return replace(world, instances=(spot, t2))


def spot_decisions(rate=19.5 * QPS):
    """Return what the policy wants of a fleet of spot instances, by type, and environments, after two minutes of 20."""
    policy = MarkSpot(burstable())

    def observe(serving, leaving=0, lost=0):
        groups = (("gpu", InstanceState.SERVING, serving), ("gpu", InstanceState.LEAVING, leaving))
        seen_fleet = tuple(InstanceGroup(kind, Market.SPOT, state, count) for kind, state, count in groups if count)
        taken = (Interruption("gpu", lost),) if lost else ()
        plan = policy.observe(Observation(0.0, 10.0, rate, seen_fleet, LatencyWindow(0, 0, 0.0), taken))
        return {one.kind: one.count for one in plan.instances}, plan.warm

    assert [observe(20) for _ in range(12)][-1] == ({"gpu": 20}, 0)
    return observe


def test_stand_ins_and_replacements_are_launched_at_the_notice_and_serve_until_spot_instances_are_back():
    observe = spot_decisions()
    noticed = observe(16, leaving=4)  # a fifth of them
    # replacements at once; 40 queries/s of 4 each; 35 queries/s beyond what stays take 2.1 environments on average
    assert noticed == ({"gpu": 24, "t2": 10}, 5)
    assert observe(16, leaving=4) == noticed
    assert observe(16, lost=4) == ({"gpu": 20, "t2": 10}, 5)
    assert observe(16) == ({"gpu": 20, "t2": 10}, 5)
    assert observe(20) == ({"gpu": 20}, 0)


def test_instances_lost_without_notice_have_stand_ins_too_and_a_second_notice_adds_to_the_first():
    observe = spot_decisions()
    assert observe(4, lost=16) == ({"gpu": 20, "t2": 40}, 16)  # 155 queries/s beyond: 9.3 on average
    observe = spot_decisions()
    assert observe(16, leaving=4)[0]["t2"] == 10
    assert observe(14, leaving=6)[0]["t2"] == 15
    assert observe(14, leaving=2, lost=4)[0]["t2"] == 15


def test_environments_are_warm_before_a_surge_that_is_forecast(monkeypatch):
    policy = with_ramp(monkeypatch)
    warm = [plan.warm for plan in plans(policy, [(60, 0.0)])]
    assert warm[:-1] == [0] * 5
    assert warm[-1] == 7  # 50 queries/s in the four minutes of a boot: 3 of 60 ms on average
    assert plans(mark(), [(120, 3 * QPS)], serving=3)[-1].warm == 0


GPU = ((1, 41.25), (8, 130.0))
"""Times of which section 4.3 makes batches of 8 in windows of 200 ms, for 600 ms."""


def test_instances_gather_batches_as_the_tuning_of_section_4_3_has_it():
    world = scenario(slo_ms=600.0)
    gpu = replace(world, instances=(replace(world.instance, batches=GPU),))
    assert mark(gpu).observe(seen(10.0, 1.0)).batching == {"gpu": Batching(8, 0.2)}
    assert mark(gpu, batch_window_ms=50.0).observe(seen(10.0, 1.0)).batching == {"gpu": Batching(8, 0.05)}
    assert mark(gpu, batch_window_ms=0.0).observe(seen(10.0, 1.0)).batching is None
    one_by_one = replace(world, instances=(replace(world.instance, batches=GPU[:1]),))
    assert mark(one_by_one).observe(seen(10.0, 1.0)).batching is None
    with pytest.raises(UsageError, match="w_batch of 500 ms and 130 ms for a batch of 8 on gpu are more than slo_ms 6"):
        mark(gpu, batch_window_ms=500.0)
