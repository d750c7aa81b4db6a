"""The greedy heuristic: headroom, replicate or upgrade by cost, T_v slots before scaling down; beside the programme."""

import random

import pytest

from serfer.control.selection.scaling.greedy import GreedyScaler
from serfer.control.selection.scaling.records import (
    OPTIONS,
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
    capacity,
    changed,
)
from serfer.control.selection.scaling.workers import WorkerObservation, plan_workers
from serfer_bench.study.papers.infaas.scaling import random_costs, settle
from serfer_bench.study.policies.integer_program import IntegerProgram
from tests.control.selection.worlds import ACTIVE, INACTIVE, INTERFERED, OVERLOADED

CPU = InstanceCosts("cpu", "resnet50", 1.0, 5.0, 200.0, 3.0, {"cores": 4.0})
INF = InstanceCosts("inferentia", "resnet50", 3.0, 100.0, 20.0, 5.0, {"inferentia cores": 1.0})
GPU = InstanceCosts("gpu", "resnet50", 16.0, 800.0, 15.0, 8.0, {"gpu memory": 2.0})
OTHER = InstanceCosts("other", "vgg16", 0.1, 1000.0, 15.0, 0.0)
ALL = (CPU, INF, GPU, OTHER)


def observe(rate, running, slo_ms=300.0, available=None, scaler=None):
    return (scaler or GreedyScaler(ALL)).observe(LoadObservation(rate, slo_ms, running, available or {}))


FULL = {"inferentia cores": 0.0}
ROOM = {"inferentia cores": 3.0, "gpu memory": 1.0, "cores": 16.0}


@pytest.mark.parametrize(
    ("rate", "slo_ms", "running", "available", "changes", "elsewhere"),
    [
        (9.5, 300.0, {"cpu": 2}, None, {}, {}),  # 10 / 9.5 is above 1.05
        (9.6, 300.0, {"cpu": 2}, None, {"cpu": 1}, {}),
        (12.0, 300.0, {"cpu": 2}, None, {"cpu": 1}, {}),  # a small lack is replicated, a large one upgraded
        (80.0, 300.0, {"cpu": 2}, None, {"inferentia": 1}, {}),
        (800.0, 300.0, {"inferentia": 1}, None, {"gpu": 1}, {}),
        (80.0, 300.0, {"cpu": 2}, FULL, {"cpu": 15}, {}),
        (80.0, 300.0, {"cpu": 2}, {**FULL, "cores": 8.0}, {"gpu": 1}, {}),
        (80.0, 300.0, {"cpu": 2}, {**FULL, "gpu memory": 0.0, "cores": 8.0}, {}, {"inferentia": 1}),
        (700.0, 300.0, {"cpu": 2}, ROOM, {"inferentia": 3}, {"inferentia": 5}),
        (12.0, 50.0, {"cpu": 2}, None, {"inferentia": 1}, {}),  # the processors are too slow
    ],
)
def test_headroom_decides_between_nothing_replicas_and_an_upgrade(rate, slo_ms, running, available, changes, elsewhere):
    plan = observe(rate, running, slo_ms, available)
    assert (plan.changes, plan.elsewhere) == (changes, elsewhere)


def test_what_nothing_supports_is_told():
    assert observe(700.0, {"cpu": 2}, available=ROOM).short_qps == pytest.approx(700.0 * 1.05 - 310.0)
    plan = observe(12.0, {"cpu": 2}, slo_ms=5.0)
    assert (plan.changes, plan.reason) == ({}, "no variant meets the SLO")
    assert plan.short_qps > 0


@pytest.mark.parametrize(
    ("loads", "running", "options", "last"),
    [
        ([4.0] * 4, {"cpu": 2}, OPTIONS, {"cpu": -1}),  # T_v is 3 slots
        ([4.0, 4.0, 9.0, 4.0, 4.0, 4.0, 4.0], {"cpu": 2}, OPTIONS, {"cpu": -1}),  # a load that returns in between
        ([8.0] * 6, {"inferentia": 1}, ScalingOptions(unpredictability=0.0), {"inferentia": -1, "cpu": 2}),
    ],
)
def test_an_instance_that_is_not_needed_goes_or_is_downgraded_after_its_loading_time(loads, running, options, last):
    scaler = GreedyScaler(ALL, options)
    changes = [observe(load, running, scaler=scaler).changes for load in loads]
    assert changes == [{}] * (len(loads) - 1) + [last]
    if "inferentia" in running:
        assert observe(8.0, running, slo_ms=50.0, scaler=scaler).changes == {}


def test_a_network_that_is_overloaded_wherever_it_runs_gets_another_instance_despite_headroom():
    seen = {name: LoadObservation(8.0, 300.0, {"cpu": 2}, {}, frozenset(name)) for name in ((), ("cpu",))}
    assert GreedyScaler(ALL).observe(seen[()]).changes == {}
    assert GreedyScaler(ALL).observe(seen["cpu",]).changes == {"cpu": 1}
    mixed = LoadObservation(8.0, 300.0, {"cpu": 2, "inferentia": 1}, {}, frozenset(["cpu"]))
    assert GreedyScaler(ALL).observe(mixed).changes == {}


@pytest.mark.parametrize("seed", range(40))
def test_a_load_that_stays_comes_to_rest_supported_and_never_cheaper_than_the_programme(seed):
    chance = random.Random(seed)  # noqa: S311 - examples, no secret
    variants = random_costs(chance)
    seen = LoadObservation(chance.uniform(1.0, 2000.0), chance.uniform(50.0, 500.0))
    options = ScalingOptions(unpredictability=0.0)
    program = IntegerProgram(variants, options).observe(seen)
    running, rests = settle(GreedyScaler(variants, options), seen)
    if program.short_qps:
        assert running == {}
        return
    assert rests
    assert capacity(variants, running) >= seen.rate * options.slack_threshold - 1e-6
    usd = {each.name: each.usd_per_s for each in variants}
    least = sum(usd[name] * count for name, count in changed({}, program.changes).items())
    assert sum(usd[name] * count for name, count in running.items()) >= least - 1e-9


def worker(name, *states, kind="gpu", boots=False, **utilisation):
    return WorkerObservation(name, kind, utilisation, {f"v{at}": state for at, state in enumerate(states)}, boots)


def test_a_resource_that_all_workers_of_a_type_use_to_more_than_80_percent_adds_one():
    assert plan_workers([worker("a", cores=0.81), worker("b", cores=0.9)]) == {
        "gpu": "all gpu workers use more than 80% of cores"
    }
    assert plan_workers([worker("a", cores=0.8), worker("b", cores=0.9)]) == plan_workers([]) == {}
    assert plan_workers([worker("a", cores=0.9, memory=0.1), worker("b", cores=0.1, memory=0.9)]) == {}
    assert set(plan_workers([worker("a", cores=0.9), worker("c", cores=0.1, kind="cpu")])) == {"gpu"}


@pytest.mark.parametrize(
    ("states", "is_added"),
    [
        ([[INTERFERED], [INTERFERED]], True),
        ([[INTERFERED, OVERLOADED], [INTERFERED]], True),  # 6.3.1
        ([[INTERFERED], [ACTIVE]], False),
        ([[INTERFERED, ACTIVE], [INTERFERED]], False),
        ([[INTERFERED, INACTIVE], [INACTIVE]], True),
        ([[INACTIVE], []], False),
    ],
)
def test_a_type_all_of_whose_variants_are_disturbed_gets_a_worker(states, is_added):
    workers = [worker(f"w{at}", *each) for at, each in enumerate(states)]
    assert bool(plan_workers(workers)) == is_added


def test_more_than_80_percent_of_workers_with_overloaded_variants_add_one_of_the_type_that_has_most():
    five = [worker(f"w{at}", OVERLOADED, ACTIVE, kind="cpu") for at in range(5)]
    assert plan_workers([*five[:4], worker("w4", ACTIVE)]) == {}  # 80%, not more
    assert set(plan_workers(five)) == {"cpu"}
    assert set(plan_workers([*five, *(worker(f"g{at}", OVERLOADED, OVERLOADED) for at in range(3))])) == {"gpu"}


def test_no_worker_is_added_while_one_of_its_type_boots():
    full = [worker("a", cores=0.95), worker("b", cores=0.95)]
    assert plan_workers(full)
    assert plan_workers([*full, worker("c", boots=True)]) == {}
    assert plan_workers([*full, worker("c", kind="cpu", boots=True)])
