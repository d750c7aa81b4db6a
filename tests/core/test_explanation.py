"""What people read of a plan is in a file beside it, and changes no digest and no name."""

import json
from dataclasses import replace

import pytest

from serfer.core.errors import PlanError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import (
    Alternative,
    Cell,
    DeploymentOption,
    Gang,
    ModelChange,
    OutputTensor,
    PackageLimit,
    dump_plan,
    parse_plan,
    sealed,
)
from serfer.core.plan.explanation import dump_explanation, with_explanation
from serfer.plan_directory import load_plan, write_plan
from tests.core.plans import read_back, small_plan
from tests.core.plans import write_plan as write_directory

GANG = Gang(0, 2, 30.0, 1e-6, compute_s=2)
PLAN = sealed(replace(small_plan(), gangs=(GANG,)))


def with_stage(**fields):
    return {"stages": (replace(PLAN.stages[0], **fields), PLAN.stages[1])}


def with_tile(**fields):
    first = PLAN.stages[0]
    return with_stage(tiles=(replace(first.tiles[0], **fields), first.tiles[1]))


def with_graph(**fields):
    first = PLAN.stages[0]
    [function] = first.functions
    return with_stage(functions=(replace(function, graphs=(replace(function.graphs[0], **fields),)),))


READ = {
    "a sentence": {"why": "It was the only one, as one says."},
    "alternatives": {"alternatives": (Alternative("1", 1, 80.0, 5e-6, fits=True, chosen=False),)},
    "a change": {"changes": (ModelChange("fp16 storage", "3 weights", "random", 4, 1e-4, 1.0, None, None),)},
    "a way": {"ways": (DeploymentOption("whole", 1, 100, fits=True, exact=True),)},
    "the store that prices are for": {"store": "s3"},
    "the dependencies' bytes": {"limit": PackageLimit(262_144_000, 90_000_001)},
    "a stage's milliseconds": with_stage(predicted_ms=40.0),
    "a stage's dollars": with_stage(predicted_usd=2.1e-6),
    "a tile's compute": with_tile(serial_ms=1.0, parallel_ms=7.0),
    "a gang's milliseconds": {"gangs": (replace(GANG, predicted_ms=31.0),)},
    "a gang's dollars": {"gangs": (replace(GANG, predicted_usd=2e-6),)},
}
EXECUTED = {
    "a graph": with_graph(sha256="0" * 64),
    "a graph's size": with_graph(bytes=8),
    "a cell": with_tile(cells=(Cell(0, Rect(Span(0, 1), Span(0, 4))), Cell(0, Rect(Span(1, 2), Span(0, 4))))),
    "memory": with_stage(memory_mb=1024),
    "a path": with_stage(path="inline"),
    "the place of weights": with_stage(weights_in="fetched"),
    "a type": {"outputs": (OutputTensor("classes", (10,), "int64"),)},
    "a label": {"labels": ("cat", *PLAN.labels[1:])},
    "preprocessing": {"preprocess": replace(PLAN.preprocess, scale=0.5)},
    "memory with a vCPU": {"memory_per_vcpu": 1770.0},
    "how long a gang may compute": {"gangs": (replace(GANG, compute_s=3),)},
    "a gang": {"gangs": ()},
}


def names(plan):
    parts = plan.functions
    return [plan.function(*part) for part in parts], [plan.deployed("stack", *part) for part in parts]


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_what_is_only_read_changes_no_digest_and_no_name(change):
    other = sealed(replace(PLAN, **change))
    assert other != PLAN
    assert (other.digest, names(other), dump_plan(other)) == (PLAN.digest, names(PLAN), dump_plan(PLAN))
    assert dump_explanation(other) != dump_explanation(PLAN)
    assert read_back(other) == other


@pytest.mark.parametrize("change", EXECUTED.values(), ids=EXECUTED)
def test_what_is_executed_changes_the_digest(change):
    assert sealed(replace(PLAN, **change)).digest != PLAN.digest


def test_a_plan_without_its_explanation_is_read_and_has_no_predictions(tmp_path):
    write_directory(tmp_path)
    assert load_plan(tmp_path) == small_plan()
    (tmp_path / "explanation.json").unlink()
    plan = load_plan(tmp_path)
    assert (plan.digest, names(plan)) == (small_plan().digest, names(small_plan()))
    assert (plan.why, plan.alternatives, plan.changes, plan.ways, plan.store, plan.limit) == ("", (), (), (), "", None)
    assert (plan.predicted_ms, plan.predicted_usd, plan.explained) == ([], None, False)
    assert [stage.predicted_ms for stage in plan.stages] == [None, None]
    with pytest.raises(PlanError, match=r"explanation\.json is missing.*split the network again"):
        plan.check_explained()
    write_plan(plan, tmp_path)
    assert not (tmp_path / "explanation.json").exists()


def test_sentences_may_be_edited_and_more_may_be_said_in_the_explanation_alone():
    value = {**json.loads(dump_explanation(PLAN)), "why": "Otherwise.", "more": [1]}
    assert with_explanation(PLAN, json.dumps(value)) == replace(PLAN, why="Otherwise.")
    for name in ("why", "store", "limit", "alternatives"):
        with pytest.raises(PlanError, match="was edited"):
            parse_plan(json.dumps({**json.loads(dump_plan(PLAN)), name: value[name]}))


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"plan": "0" * 64}, "of another plan"),
        ({"stages": []}, "of another plan"),
        ({"gangs": []}, "of another plan"),
        ({"gangs": [{"predicted_ms": -1.0, "predicted_usd": 0.0}]}, "finite and 0 or more"),
        ({"gangs": [{"predicted_ms": float("nan"), "predicted_usd": 0.0}]}, "finite and 0 or more"),
        ({"why": 3}, "a text"),
        ({"limit": {"package": 1, "dependencies": 2}}, "limit of packages"),
        ({"limit": {"package": -1, "dependencies": -2}}, "limit of packages"),
    ],
)
def test_an_explanation_that_is_damaged_or_of_another_plan_is_refused_by_its_path(tmp_path, change, complaint):
    write_plan(PLAN, tmp_path)
    path = tmp_path / "explanation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(PlanError, match=rf"{path}.*{complaint}"):
        load_plan(tmp_path)
    path.write_text("{")
    with pytest.raises(PlanError, match=rf"{path} is not JSON"):
        load_plan(tmp_path)
