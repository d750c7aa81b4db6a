"""Gangs: which runs of stages become one, and what their plans say."""

import json

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import ModelError, PlanWarning, UsageError
from serfer.core.plan import PackageLimit
from serfer.pictures import draw_plan
from serfer.plan_directory import load_cold_plan
from serfer.splitter.planning.split_options import check_gang
from serfer.splitter.split import split
from tests.splitter.models import LIMIT, Net, cut_net, plan_error, split_error


def residual_blocks():
    """Return a stem, two bottlenecks with skips, pooling and a linear layer."""
    net = Net(3, 24, 20)
    x = net.op("Relu", net.conv("x", 3, 8, 3), output="stem")
    for block in range(2):
        narrow = net.op("Relu", net.conv(x, 8, 4, 1), output=f"narrow{block}")
        y = net.op("Relu", net.conv(narrow, 4, 4, 3))
        x = net.op("Relu", net.op("Add", net.conv(y, 4, 8, 1), x), output=f"block{block}")
    pooled = net.op("GlobalAveragePool", x, output="pool")
    return net, net.linear(net.flat(pooled), 8, 5)


CUTS = ("narrow0", "narrow1", "pool.tiles")


def planned(directory, grids=("2x1", "2x1", "2x1", "1"), cuts=CUTS, gang="always", limit=LIMIT):
    return cut_net(*residual_blocks(), directory, list(grids), cuts=cuts, gang=gang, limit=limit)


def parts_of_others(stage):
    tiles = enumerate(stage.tiles)
    return [part for number, tile in tiles for piece in tile.pieces if piece.tile != number for part in piece.ranges]


def test_a_run_of_stages_is_one_gang_with_the_head_on_its_first_member(tmp_path):
    plan = planned(tmp_path / "plan")
    (gang,) = plan.gangs
    assert list(gang.stages) == [0, 1, 2, 3]
    assert plan.functions == [(0, 0)]
    assert plan.predicted_ms == [gang.predicted_ms]
    assert gang.predicted_ms < sum(stage.predicted_ms for stage in plan.stages)
    for stage in plan.stages[1:3]:  # inside a residual block halos alone cross an exchange
        borders = [cell for part in parts_of_others(stage) for cell in part.cells]
        assert [cell.rect.rows.size for cell in borders] == [1, 1]
        assert {cell.rect.area for cell in borders} == {20}
    assert [planned(tmp_path / gang, gang=gang).gangs for gang in ("never", "auto")] == [(), ()]


@pytest.mark.exact
def test_a_plan_with_gangs_is_exact_when_its_stages_run_one_by_one(tmp_path):
    assert plan_error(*residual_blocks(), planned(tmp_path / "plan"), tmp_path / "plan") < 1e-6


@pytest.mark.parametrize("grids", [("1", "2x1", "1", "1"), ("2x1", "2x2", "1x2", "1")])
def test_a_gang_never_has_more_tiles_than_its_first_stage(tmp_path, grids):
    plan = planned(tmp_path / "plan", grids)
    assert [gang.stages for gang in plan.gangs] == [range(1, 4)]


def flat():
    net = Net(3, 8, 8)
    return net, net.linear(net.flat("x"), 192, 5)


def small_maps():
    net = Net(3, 5, 5)
    return net, net.linear(net.flat(net.conv(net.conv("x", 3, 4, 3), 4, 4, 3)), 100, 5)


@pytest.mark.parametrize(
    ("network", "options", "reason"),
    [
        (residual_blocks, {"grids": ["1"] * 4, "cuts": CUTS}, "no stage before the last has tiles of rows"),
        (residual_blocks, {"grids": "1"}, "stages on the grid 1 have no neighbours"),
        (flat, {}, ".*neither windows of several rows nor global pooling"),
        (small_maps, {}, "no stages on any grid have maps that are large enough"),
    ],
)
def test_a_plan_without_the_requested_gang_reports_why(tmp_path, network, options, reason):
    with pytest.warns(PlanWarning, match=f"no stages can be a gang: {reason}"):
        plan = cut_net(*network(), tmp_path / "plan", gang="always", **options)
    assert plan.gangs == ()
    assert "No stages can be a gang: " in plan.why


def test_a_gang_that_its_package_cannot_hold_is_shorter(tmp_path):
    plan = planned(tmp_path / "plan")
    largest = max(sum(function.bytes for function in stage.functions) for stage in plan.stages)
    room = plan.function_bytes(0, 0) - 1
    assert largest < room
    with pytest.raises(Exception, match="gang of stages 0 to 3"):
        planned(tmp_path / "less", limit=PackageLimit(LIMIT.dependencies + room, LIMIT.dependencies))


@pytest.mark.parametrize(("store", "possible"), [("redis", True), ("valkey+s3", True), ("s3", False)])
def test_gangs_need_a_store_that_wakes_whoever_waits(store, possible):
    if possible:
        check_gang("always", store)
        return
    with pytest.raises(UsageError, match="--set gang=never"):
        check_gang("always", store)
    with pytest.raises(UsageError, match="--set gang=never"):
        split("resnet18", out="nowhere", store=store, gang="always")


def test_a_free_search_finds_a_gang_where_one_is_wanted(tmp_path):
    plan = cut_net(*residual_blocks(), tmp_path / "plan", gang="always")
    (gang,) = plan.gangs
    assert f"Stages 0 to {gang.stop - 1} are a gang on" in plan.why
    (chosen,) = (each for each in plan.alternatives if each.chosen)
    assert chosen.stages.startswith("a gang of")
    assert (gang.start, chosen.tasks) == (0, plan.stages[0].grid.tiles)
    assert (chosen.ms, chosen.usd) == (gang.predicted_ms, gang.predicted_usd)
    assert plan_error(*residual_blocks(), plan, tmp_path / "plan") < 1e-6


@pytest.mark.parametrize("gang", ["auto", "always"])
@pytest.mark.parametrize("grids", ["auto", "5x5"])
def test_maps_that_become_smaller_than_a_gangs_grid_are_no_obstacle_to_a_plan(tmp_path, gang, grids):
    net = Net(3, 48, 40)
    x = "x"
    for channels in (3, 4, 4, 4, 4):
        x = net.conv(x, channels, 4, 3, strides=[2, 2])
    output = net.linear(net.flat(net.conv(x, 4, 4, 3)), 16, 5)
    assert split_error(net, output, tmp_path / "plan", grids, gang=gang) < 1e-6


def test_explain_and_cost_show_a_gang_as_one_step(tmp_path):
    plan = planned(tmp_path / "plan")
    shown = CliRunner().invoke(app, ["explain", str(tmp_path / "plan")], env={"COLUMNS": "200"})
    assert "stages 0 to 3" in shown.output
    assert "of borders exchanged, the rest stays" in shown.output
    assert shown.output.count("(gang of 0 to 3)") == len(plan.stages)
    priced = CliRunner().invoke(app, ["cost", "--json", str(tmp_path / "plan")])
    (step,) = json.loads(priced.output)["query"]["stages"]
    assert step["name"] == "stage-0..3"
    assert step["exchanges"] == 3
    assert step["ms"] == pytest.approx(plan.gangs[0].predicted_ms, abs=1e-3)
    assert step["cost_usd"] == pytest.approx(plan.gangs[0].predicted_usd)
    assert plan.predicted_usd == pytest.approx(step["cost_usd"])
    assert 0 < step["waiting_s"] < step["billed_ms"] / 1000
    assert step["bytes_exchanged"] == sum(part.length(1) for stage in plan.stages for part in parts_of_others(stage))
    draw_plan(plan, tmp_path / "plan.svg")
    assert "of borders exchanged" in (tmp_path / "plan.svg").read_text()


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
    x = net.conv("x", 3, 96, 3)
    for _ in range(2):
        x = net.op("Relu", net.conv(x, 96, 96, 3))
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
    with pytest.raises(UsageError, match=r"gang_width .* not 1"):
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
