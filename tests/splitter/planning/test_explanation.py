"""The reasons in a plan are true: its constraints, its choices, and the alternatives."""

import pytest

from serfer.core.errors import ModelError, PlanWarning, UsageError
from serfer.plan_directory import load_cold_plan
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


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """A network whose fastest plan has as many tiles as there may be, or all vCPUs."""
    net = Net(3, 144, 144)
    x = net.conv("x", 3, 96, [3, 3], pads=[1, 1, 1, 1])
    for _ in range(2):
        x = net.op("Relu", net.conv(x, 96, 96, [3, 3], pads=[1, 1, 1, 1]))
    pooled = net.op("GlobalAveragePool", net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    return net.save(tmp_path_factory.mktemp("heavy"), net.linear(net.flat(pooled), 96, 5))


def needs(plan):
    return max(stage.memory_mb for stage in plan.stages), max(stage.grid.tiles for stage in plan.stages)


def test_the_default_plan_runs_on_a_new_account_and_says_so(heavy, tmp_path):
    plan = split(heavy, out=tmp_path / "plan", objective="latency")
    memory, tiles = needs(plan)
    assert (memory <= 3008, tiles <= 9) == (True, True)
    assert "Planned for a new AWS account of 3,008 MB a function and 10 environments at once (assumed" in plan.why
    large = split(heavy, out=tmp_path / "large", objective="latency", account="default")
    memory, tiles = needs(large)
    assert memory > 3008 or tiles > 9
    assert "Planned for an AWS account of 10,240 MB" in large.why
    assert sum(large.predicted_ms) < sum(plan.predicted_ms)
    given = split(heavy, out=tmp_path / "given", grids=["4x4", "1"], memory_mb=5307)
    assert needs(given) == (5307, 16)


def test_a_gang_is_as_wide_as_gangs_that_were_measured_unless_more_is_allowed(heavy, tmp_path):
    options = {"objective": "latency", "gang": "always", "account": "3008,10"}
    plan = split(heavy, out=tmp_path / "plan", **options)
    assert (plan.widest_gang, "simulated" in plan.why) == (2, False)
    wide = split(heavy, out=tmp_path / "wide", gang_width=4, **options)
    assert 2 < wide.widest_gang <= 4
    assert "Its times are simulated" in wide.why
    assert any("simulated" in other.stages for other in wide.alternatives)
    assert sum(wide.predicted_ms) < sum(plan.predicted_ms)
    few = split(heavy, out=tmp_path / "few", gang_width=4, **options | {"account": "3008,4"})
    assert 1 < few.widest_gang <= 3
    with pytest.raises(UsageError, match=r"--gang-width .* not 1"):
        split(heavy, out=tmp_path / "plan", gang_width=1)


def test_a_network_that_needs_more_memory_than_the_account_has_is_told_so(heavy, tmp_path):
    with pytest.raises(ModelError, match=r"an AWS account of 128 MB .*account.* allows 128: allow more"):
        split(heavy, out=tmp_path / "plan", account="128,10")
    with pytest.raises(UsageError, match="account is new, default"):
        split(heavy, out=tmp_path / "plan", account="old")


def test_a_cold_plan_leaves_room_for_the_plan_that_starts_beside_it(heavy, tmp_path):
    plan = split(heavy, out=tmp_path / "plan", grids=["2x2", "1"], cold_plan="always", account="3008,6")

    cold = load_cold_plan(tmp_path / "plan", plan)
    assert max(stage.grid.tiles for stage in cold.stages) == 1
