"""Optima: clairvoyant, by integer programme, and of a policy that knows the process."""

import math
import random
import tomllib
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policy import fleet_of
from serfer.control.scenario import parse_scenario
from serfer.control.selection.scaling.records import (
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
    action_cost,
    capacity,
    changed,
    has_room,
)
from serfer.core.errors import MissingExtraError, UnavailableError
from serfer_bench.study.loads.generators import generate, parameters_of
from serfer_bench.study.policies.clairvoyant import optimum_schedule, optimum_usd
from serfer_bench.study.policies.integer_program import IntegerProgram
from serfer_bench.study.policy_experiments.memoryless import MemorylessOptimum, least_cost_actions
from serfer_bench.study.policy_experiments.policies import Options, cases, results
from serfer_bench.study.sim.rates import run_rates
from serfer_bench.study.sim.simulate import RunOptions
from tests.control.worlds import LARGE, QPS, SMALL, TWO_TYPES, best, rows, scenario, seen

PRICE_RATIOS = st.sampled_from([0.5, 1.0, 1.5, 3.0, 13.0, 26.0])
BOOTS = st.sampled_from([0.0, 10.0, 240.0])


def least_of_all_fleets(world, load):
    """Try every number of instances in every row, without a thought of levels."""
    most = 1 + int(max(rate for _, rate in load) // world.instance.qps)
    return min(cost(world, load, fleet) for fleet in product(range(most + 1), repeat=len(load)))


@settings(derandomize=True, max_examples=30)
@given(rows(2.5 * QPS, most_rows=5), PRICE_RATIOS, BOOTS)
def test_the_optimum_is_the_least_over_all_fleets(load, price_ratio, boot_s):
    world = scenario(price_ratio, boot_s=boot_s)
    assert best(world, load) == pytest.approx(least_of_all_fleets(world, load), rel=1e-9, abs=1e-9)


def cost(world, load, fleet):
    """Price a number of instances in each row, Lambda taking what is beyond them."""
    kind = world.instance
    starts = sum(max(after - before, 0) for before, after in pairwise([0, *fleet]))
    running = sum(
        seconds * (count * kind.usd_per_s + max(rate - count * kind.qps, 0.0) * world.serverless.usd_per_query)
        for count, (seconds, rate) in zip(fleet, load, strict=True)
    )
    return starts * kind.start_usd + running


@given(rows(3.5 * QPS, most_rows=30), PRICE_RATIOS, BOOTS)
def test_the_schedule_costs_the_optimum_and_its_dollars_are_those_of_each_beginning(load, price_ratio, boot_s):
    world = scenario(price_ratio, boot_s=boot_s)
    schedule = optimum_schedule(world, *zip(*load, strict=True))
    assert cost(world, load, schedule.instances.tolist()) == pytest.approx(best(world, load))
    beginnings = [best(world, load[:end]) for end in range(1, len(load) + 1)]
    assert schedule.usd.tolist() == pytest.approx(beginnings)
    assert optimum_usd(world, [], []) == 0


TABLE_2 = (
    InstanceCosts("A", "ResNet50", 1.0, 5.0, 200.0, 0.0),
    InstanceCosts("B", "ResNet50", 3.0, 100.0, 20.0, 0.0),
    InstanceCosts("C", "ResNet50", 16.0, 800.0, 15.0, 0.0),
)
NO_SLACK = ScalingOptions(slack_threshold=1.0)


@pytest.mark.parametrize(
    ("rate", "slo_ms", "instances", "usd"),
    [(10.0, 300.0, {"A": 2}, 2.0), (10.0, 50.0, {"B": 1}, 3.0), (1000.0, 300.0, {"B": 2, "C": 1}, 22.0)],
)
def test_the_paper_s_table_3_from_its_table_2(rate, slo_ms, instances, usd):
    plan = IntegerProgram(TABLE_2, NO_SLACK).observe(LoadObservation(rate, slo_ms))
    assert plan.changes == instances
    assert sum(each.usd_per_s * plan.changes.get(each.name, 0) for each in TABLE_2) == usd


def small(seed, usd_unit):
    """Return few variants, options and an observation with little room."""
    chance = random.Random(seed)  # noqa: S311 - examples, no secret
    variants = []
    for at in range(chance.randint(1, 3)):
        usd, qps, latency_ms, load_s = map(chance.choice, (range(1, 10), range(1, 10), (10.0, 100.0), range(10)))
        usd *= usd_unit
        variants.append(InstanceCosts(f"v{at}", "n", usd, qps, latency_ms, load_s, {"cores": chance.randint(0, 2)}))
    running = {each.name: chance.randint(0, 2) for each in variants}
    options = ScalingOptions(chance.choice([1.0, 1.05]), chance.choice([0.0, 0.1, 1.0]))
    used = sum(each.resources["cores"] * running[each.name] for each in variants)
    available = {} if chance.random() < 0.3 else {"cores": used + chance.randint(0, 4)}
    return variants, options, LoadObservation(chance.randint(0, 25), 50.0, running, available)


def cheapest(variants, options, seen):
    """Return the least cost of all possible actions by trying them; None where none supports the load."""
    found = []
    for deltas in product(*(range(-seen.running[each.name], 28) for each in variants)):
        changes = {each.name: delta for each, delta in zip(variants, deltas, strict=True)}
        if is_possible(variants, options, seen, changes):
            found.append(sum(action_cost(each, changes[each.name], options) for each in variants))
    return min(found, default=None)


def is_possible(variants, options, seen, changes):
    after = changed(seen.running, changes)
    return (
        capacity(variants, after) >= seen.rate * options.slack_threshold - 1e-6
        and all(changes.get(each.name, 0) <= 0 or each.latency_ms <= seen.slo_ms for each in variants)
        and has_room(variants, after, seen.available)
        and min(after.values()) >= 0
    )


@pytest.mark.parametrize("usd_unit", [1.0, 1e-6, 1e-9])  # from a dollar a second to a few cents a day
@pytest.mark.parametrize("seed", range(40))
def test_the_programme_finds_the_least_cost_of_all_actions(seed, usd_unit):
    variants, options, seen = small(seed, usd_unit)
    plan = IntegerProgram(variants, options).observe(seen)
    least = cheapest(variants, options, seen)
    if least is None:
        assert plan.short_qps > 0
        assert has_room(variants, changed(seen.running, plan.changes), seen.available)
        return
    assert plan.short_qps == 0
    assert is_possible(variants, options, seen, plan.changes)
    cost = sum(action_cost(each, plan.changes.get(each.name, 0), options) for each in variants)
    assert cost == pytest.approx(least, rel=1e-6, abs=0.0)


def test_where_there_is_no_room_for_the_load_as_much_as_fits_is_loaded():
    program = IntegerProgram([InstanceCosts("a", "n", 1.0, 10.0, 20.0, 1.0, {"cores": 2.0})], NO_SLACK)
    plan = program.observe(LoadObservation(100.0, 50.0, {}, {"cores": 7.0}))
    assert plan.changes == {"a": 3}
    assert plan.short_qps == pytest.approx(70.0)
    assert "70 more than there is room for" in plan.reason
    with pytest.raises(UnavailableError, match="more than there is"):
        program.observe(LoadObservation(1.0, 50.0, {}, {"cores": -1.0}))


def test_programme_that_highs_refuses_is_not_called_one_without_a_solution():
    """SciPy 1.17.1 returns the status of an infeasible one for a coefficient of 1e15, which HiGHS does not take."""
    program = IntegerProgram([InstanceCosts("a", "n", 1.0, 10.0, 20.0, 1.0, {"bytes": 1e15})], NO_SLACK)
    with pytest.raises(UnavailableError, match=r"was not solved: .*Model error"):
        program.observe(LoadObservation(5.0, 50.0, available={"bytes": 4e15}))


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[learn\]"):
        IntegerProgram(TABLE_2)


def average(on, units, chances, boots, steps=600):
    """Return what a table of actions pays a step in the long run, from off in the low state."""
    places = [*product((0, 1), range(boots + 2))]
    matrix, paid = np.zeros((len(places), len(places))), np.zeros(len(places))
    for at, (state, instance) in enumerate(places):
        started = (instance or 1 + boots) if on[state, instance] else 0
        left = max(1, started - 1) if started else 0
        for then in (0, 1):
            matrix[at, places.index((then, left))] += chances[state, then]
            paid[at] += chances[state, then] * ((units[then] if started != 1 else 0.0) + (started > 0))
    return np.linalg.matrix_power(matrix, steps)[0] @ paid


@settings(derandomize=True, max_examples=20, deadline=None)
@given(
    low=st.floats(0, 2),
    more=st.floats(0, 15),
    up=st.floats(0.02, 0.6),
    down=st.floats(0.02, 0.6),
    boots=st.integers(0, 3),
    seed=st.integers(0, 100),
)
def test_no_table_of_actions_costs_less_on_average(low, more, up, down, boots, seed):
    units, chances = np.array([low, low + more]), np.array([[1 - up, up], [down, 1 - down]])
    best = average(least_cost_actions(units, chances, boots), units, chances, boots)
    tables = np.random.default_rng(seed).random((6, 2, boots + 2)) < 0.5
    follow = np.repeat([[False], [True]], boots + 2, 1)
    for other in (*tables, np.zeros_like(follow), np.ones_like(follow), follow):
        assert best <= average(other, units, chances, boots) * (1 + 1e-3) + 1e-2


@pytest.mark.weekly
@pytest.mark.parametrize("text", [SMALL, TWO_TYPES, LARGE])
def test_simulated_it_costs_no_more_than_the_cheapest_of_the_rules_that_make_sense(text):
    """Always, never, or from a burst's begin to its end: what each level pays of them on average is known."""
    world, load = parse_scenario(tomllib.loads(text)), "mmpp:hours=1000,row_s=30,seed=3"
    process = parameters_of(load)
    factor = world.instance.qps / 32.5
    trace = generate(load).scaled(factor)
    run = run_rates(trace, world, MemorylessOptimum(world, process, factor, 30.0), period_s=30.0)
    high = np.flatnonzero(trace.rates > 55 * factor)
    bursts = np.count_nonzero(np.diff(high) > 1) + 1
    high_s, low_s = len(high) * 30.0, (len(trace.rates) - len(high)) * 30.0
    stay_s, boot_s, least = high_s / bursts, world.instance.boot_s + 30.0, 0.0  # a decision holds from the next step on
    for level in range(math.ceil(100 / 32.5)):
        low, full = (world.price_ratio * min(max(rate / 32.5 - level, 0.0), 1.0) for rate in (10.0, 100.0))
        followed = low * low_s + high_s + full * high_s * (1 - math.exp(-boot_s / stay_s))
        least += min(low_s + high_s, low * low_s + full * high_s, followed)
    assert 0.9 * least < run.cost_usd / world.instance.usd_per_s < 1.03 * least


def test_it_goes_on_from_instances_that_serve():
    world = scenario(3.0)
    policy = MemorylessOptimum(world, parameters_of("mmpp:low_s=1e5,high_s=1e5"), QPS / 50.0, 1.0)
    policy.resume(fleet_of(world.instance, 0, 1))
    assert policy.observe(seen(1.0, 0.2 * QPS)).total == 0
    assert policy.observe(seen(1.0, 2.0 * QPS)).total == 2
    assert policy.observe(seen(1.0, 2.0 * QPS)).reason == "the process is high"


def test_bench_policies_compares_with_it_over_seeds(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    load, run_options = "mmpp:hours=6,row_s=30", RunOptions(period_s=30.0)
    options = Options(("ski-rental",), run_options, only=(load,), scales=("M",), seeds=2)
    rows = [outcome for case in cases(tmp_path, tmp_path, options) for outcome in case.run()]
    assert [(one.policy, one.seed) for one in rows] == [
        (policy, seed) for seed in (0, 1) for policy in ("ski-rental", "mmpp-optimum")
    ]
    assert len({one.trace for one in rows}) == 2
    times = np.mean([rows[at].cost_usd / rows[at + 1].cost_usd for at in (0, 2)])
    table = results(rows).tables[1]
    beside = dict(zip(table.head, table.body[0], strict=True))
    assert (beside["policy"], beside["loads"]) == ("ski-rental", "2")
    assert beside["over the optimum"] == f"{(rows[0].ratio + rows[2].ratio) / 2:.3f}"
    assert beside["over mmpp-optimum"] == f"{times:.3f}"
