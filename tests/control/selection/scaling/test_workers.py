"""The three triggers of the VM-Autoscaler."""

import pytest

from serfer.control.selection.scaling import WorkerObservation, plan_workers
from tests.control.selection.worlds import ACTIVE, INACTIVE, INTERFERED, OVERLOADED


def worker(name, *states, kind="gpu", boots=False, **utilisation):
    return WorkerObservation(name, kind, utilisation, {f"v{at}": state for at, state in enumerate(states)}, boots)


def test_a_resource_that_all_workers_of_a_type_use_to_more_than_80_percent_adds_one():
    assert plan_workers([worker("a", cores=0.81), worker("b", cores=0.9)]).add == {
        "gpu": "all gpu workers use more than 80% of cores"
    }
    assert plan_workers([worker("a", cores=0.8), worker("b", cores=0.9)]).add == {}
    assert plan_workers([worker("a", cores=0.9, memory=0.1), worker("b", cores=0.1, memory=0.9)]).add == {}
    assert set(plan_workers([worker("a", cores=0.9), worker("c", cores=0.1, kind="cpu")]).add) == {"gpu"}


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
    assert bool(plan_workers(workers).add) == is_added


def test_more_than_80_percent_of_workers_with_overloaded_variants_add_one_of_the_type_that_has_most():
    five = [worker(f"w{at}", OVERLOADED, ACTIVE, kind="cpu") for at in range(5)]
    assert plan_workers([*five[:4], worker("w4", ACTIVE)]).add == {}  # 80%, not more
    assert set(plan_workers(five).add) == {"cpu"}
    assert set(plan_workers([*five, *(worker(f"g{at}", OVERLOADED, OVERLOADED) for at in range(3))]).add) == {"gpu"}


def test_no_worker_is_added_while_one_of_its_type_boots():
    full = [worker("a", cores=0.95), worker("b", cores=0.95)]
    assert plan_workers(full).add
    assert plan_workers([*full, worker("c", boots=True)]).add == {}
    assert plan_workers([*full, worker("c", kind="cpu", boots=True)]).add


def test_without_workers_nothing_is_added():
    assert plan_workers([]).add == {}
