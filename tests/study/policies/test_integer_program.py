"""The integer programme: the paper's Tables 2 and 3, and the optimum of small instances by trying everything."""

import random
from itertools import product

import pytest

from serfer.control.selection.scaling import (
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
    action_cost,
    capacity,
    changed,
    has_room,
)
from serfer.core.errors import MissingExtraError, UnavailableError
from serfer_bench.study.policies.integer_program import IntegerProgram

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


def small(seed):
    """Return few variants, options and an observation with little room."""
    chance = random.Random(seed)  # noqa: S311 - examples, no secret
    variants = [
        InstanceCosts(
            f"v{at}",
            "n",
            chance.randint(1, 9),
            chance.randint(1, 9),
            chance.choice([10.0, 100.0]),
            chance.randint(0, 9),
            {"cores": chance.randint(0, 2)},
        )
        for at in range(chance.randint(1, 3))
    ]
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


@pytest.mark.parametrize("seed", range(60))
def test_the_programme_finds_the_least_cost_of_all_actions(seed):
    variants, options, seen = small(seed)
    plan = IntegerProgram(variants, options).observe(seen)
    least = cheapest(variants, options, seen)
    if least is None:
        assert plan.short_qps > 0
        assert has_room(variants, changed(seen.running, plan.changes), seen.available)
        return
    assert plan.short_qps == 0
    assert is_possible(variants, options, seen, plan.changes)
    cost = sum(action_cost(each, plan.changes.get(each.name, 0), options) for each in variants)
    assert cost == pytest.approx(least)


def test_where_there_is_no_room_for_the_load_as_much_as_fits_is_loaded():
    variant = InstanceCosts("a", "n", 1.0, 10.0, 20.0, 1.0, {"cores": 2.0})
    plan = IntegerProgram([variant], NO_SLACK).observe(LoadObservation(100.0, 50.0, {}, {"cores": 7.0}))
    assert plan.changes == {"a": 3}
    assert plan.short_qps == pytest.approx(70.0)
    assert "70 more than there is room for" in plan.reason


def test_a_load_that_falls_unloads_and_weight_on_loading_keeps_what_runs():
    slow = InstanceCosts("slow", "n", 1.0, 5.0, 20.0, 10.0)
    fast = InstanceCosts("fast", "n", 3.0, 100.0, 20.0, 10.0)
    seen = LoadObservation(5.0, 50.0, {"fast": 1})
    assert IntegerProgram([slow, fast], ScalingOptions(1.0, 0.0)).observe(seen).changes == {"slow": 1, "fast": -1}
    assert IntegerProgram([slow, fast], ScalingOptions(1.0, 1.0)).observe(seen).changes == {}


def test_running_instances_beyond_what_there_is_are_an_error():
    variant = InstanceCosts("a", "n", 1.0, 10.0, 20.0, 1.0, {"cores": 2.0})
    with pytest.raises(UnavailableError, match="more than there is"):
        IntegerProgram([variant], NO_SLACK).observe(LoadObservation(1.0, 50.0, {}, {"cores": -1.0}))


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[learn\]"):
        IntegerProgram(TABLE_2)
