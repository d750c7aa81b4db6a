"""The reasons in a plan are true: its constraints, its choices, and the alternatives."""

import pytest

from serfer.core.errors import PlanWarning
from serfer.splitter.split import split
from tests.splitter.models import Net


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    net = Net(3, 16, 16)
    return net.save(tmp_path_factory.mktemp("network"), net.linear(net.flat(net.conv("x", 3, 4, [3, 3])), 784, 5))


@pytest.fixture
def why(network, tmp_path):
    return lambda **options: split(str(network), out=tmp_path / "plan", **options).why


def test_reasons_name_a_plan_chosen_without_constraints(why):
    reasons = why()
    assert "the least product of latency and dollars of all plans that fit" in reasons
    assert "given" not in reasons


@pytest.mark.parametrize(
    ("options", "given", "chosen"),
    [
        ({"grids": (2, 2)}, "grid 2x2 for every stage that can have it", "cuts, memory"),
        ({"grids": [(2, 2), "1"]}, "grids 2x2, 1", "cuts, memory"),
        ({"stages": 2}, "2 stages", "cuts, grids, memory"),
        ({"memory_mb": 1769}, "1769 MB of memory", "cuts, grids"),
        ({"memory_mb": [1769, 3538]}, "1769 or 3538 MB of memory", "cuts, grids, memory"),
        ({"max_tiles": 4, "precision": "fp32"}, "at most 4 tasks a stage; weights in fp32", "cuts, grids, memory"),
        ({"gap": "never", "grids": "1"}, "grid 1 for every stage that can have it; no pooled head", "cuts, memory"),
        ({"objective": "cost", "stages": 1}, "1 stage", "cuts, grids, memory"),
    ],
)
def test_reasons_name_constraints_and_free_choices(why, options, given, chosen):
    reasons = why(**options)
    assert "of all plans" not in reasons
    assert f"of the plans that fit with what was given ({given})" in reasons
    assert f"The planner chose {chosen} and how stages hand on." in reasons


def test_reasons_name_one_function_that_beats_the_requested_grid(why):
    reasons = why(grids=(2, 2), memory_mb=1769)
    assert "This plan loses to that in both, because of what was given." in reasons
    assert "costs 0.00 times" not in reasons
    assert "loses" not in why(grids="1", memory_mb=1769)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"grids": (64, 64)}, "no stage can be spread 64x64: the largest map at a cut is 14 x 14"),
        ({"grids": "col7"}, "no stage can be spread col7: no fully connected layer"),
        ({"grids": (2, 2), "max_tiles": 3}, "no stage can be spread 2x2: it has 4 tiles, and at most 3 are allowed"),
    ],
)
def test_a_requested_grid_that_no_stage_can_have_is_reported(why, options, reason):
    with pytest.warns(PlanWarning, match=reason) as warned:
        reasons = why(**options)
    assert warned[0].filename == __file__
    assert reason[1:] in reasons
