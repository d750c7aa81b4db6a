"""Gangs: which runs of stages become one, and what their plans say."""

import json

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import PlanWarning, UsageError
from serfer.core.plan import PackageLimit
from serfer.pictures import draw_plan
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.planning.split_options import check_gang
from serfer.splitter.split import split
from tests.splitter.models import LIMIT, Net, cut, relative_error, unsplit, worst_error


def residual_blocks():
    """Return a stem, two bottlenecks with skips, pooling and a linear layer."""
    net = Net(3, 24, 20)
    x = net.op("Relu", net.conv("x", 3, 8, [3, 3], pads=[1, 1, 1, 1]), output="stem")
    for block in range(2):
        narrow = net.op("Relu", net.conv(x, 8, 4, [1, 1]), output=f"narrow{block}")
        y = net.op("Relu", net.conv(narrow, 4, 4, [3, 3], pads=[1, 1, 1, 1]))
        x = net.op("Relu", net.op("Add", net.conv(y, 4, 8, [1, 1]), x), output=f"block{block}")
    pooled = net.op("GlobalAveragePool", x, output="pool")
    return net.model(net.linear(net.flat(pooled), 8, 5))


CUTS = ("narrow0", "narrow1", "pool.tiles")


def planned(directory, grids=("2x1", "2x1", "2x1", "1"), cuts=CUTS, gang="always", limit=LIMIT):
    return cut(residual_blocks(), (24, 20), directory, list(grids), cuts=cuts, gang=gang, limit=limit)


def test_a_run_of_stages_is_one_gang_with_the_head_on_its_first_member(tmp_path):
    plan = planned(tmp_path / "plan")
    (gang,) = plan.gangs
    assert list(gang.stages) == [0, 1, 2, 3]
    assert plan.functions == [(0, 0)]
    assert plan.predicted_ms == [gang.predicted_ms]
    assert gang.predicted_ms < sum(stage.predicted_ms for stage in plan.stages)
    for stage in plan.stages[1:3]:  # inside a residual block halos alone cross an exchange
        for number, tile in enumerate(stage.tiles):
            parts = [part for piece in tile.pieces if piece.tile != number for part in piece.ranges]
            borders = [cell for part in parts for cell in part.cells]
            assert {cell.rect.rows.size for cell in borders} == {1}
            assert sum(cell.rect.area for cell in borders) == 20
    assert [planned(tmp_path / gang, gang=gang).gangs for gang in ("never", "auto")] == [(), ()]


@pytest.mark.exact
def test_a_plan_with_gangs_is_exact_when_its_stages_run_one_by_one(tmp_path):
    plan, model = planned(tmp_path / "plan"), residual_blocks()
    batch = Net(3, 24, 20).floats(2, 3, 24, 20)
    assert relative_error(run_tiles(plan, tmp_path / "plan", batch), unsplit(model, batch)) < 1e-6


@pytest.mark.parametrize("grids", [("1", "2x1", "1", "1"), ("2x1", "2x2", "1x2", "1")])
def test_a_gang_never_has_more_tiles_than_its_first_stage(tmp_path, grids):
    plan = planned(tmp_path / "plan", grids)
    assert [gang.stages for gang in plan.gangs] == [range(1, 4)]


def flat():
    net = Net(3, 8, 8)
    return net.model(net.linear(net.flat("x"), 192, 5))


def small_maps():
    net = Net(3, 5, 5)
    x = net.conv(net.conv("x", 3, 4, [3, 3], pads=[1, 1, 1, 1]), 4, 4, [3, 3], pads=[1, 1, 1, 1])
    return net.model(net.linear(net.flat(x), 100, 5))


@pytest.mark.parametrize(
    ("model", "size", "options", "reason"),
    [
        (
            residual_blocks,
            (24, 20),
            {"grids": ["1"] * 4, "cuts": CUTS},
            "no stage before the last has tiles of rows",
        ),
        (
            residual_blocks,
            (24, 20),
            {"grids": "1"},
            "stages on the grid 1 have no neighbours",
        ),
        (flat, (8, 8), {}, ".*neither windows of several rows nor global pooling"),
        (small_maps, (5, 5), {}, "no stages on any grid have maps that are large enough"),
    ],
)
def test_a_plan_without_the_requested_gang_reports_why(tmp_path, model, size, options, reason):
    with pytest.warns(PlanWarning, match=f"no stages can be a gang: {reason}"):
        plan = cut(model(), size, tmp_path / "plan", gang="always", **options)
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
    plan = cut(residual_blocks(), (24, 20), tmp_path / "plan", gang="always")
    (gang,) = plan.gangs
    assert gang.start == 0
    assert f"Stages 0 to {gang.stop - 1} are a gang on" in plan.why
    (chosen,) = (each for each in plan.alternatives if each.chosen)
    assert chosen.stages.startswith("a gang of")
    assert chosen.tasks == plan.stages[0].grid.tiles
    assert chosen.ms == pytest.approx(gang.predicted_ms, rel=0.02)
    assert chosen.usd == pytest.approx(gang.predicted_usd, rel=0.02)
    model, batch = residual_blocks(), Net(3, 24, 20).floats(2, 3, 24, 20)
    assert relative_error(run_tiles(plan, tmp_path / "plan", batch), unsplit(model, batch)) < 1e-6


@pytest.mark.parametrize("gang", ["auto", "always"])
@pytest.mark.parametrize("grids", ["auto", "5x5"])
def test_maps_that_become_smaller_than_a_gangs_grid_are_no_obstacle_to_a_plan(tmp_path, gang, grids):
    net = Net(3, 48, 40)
    x, channels = "x", 3
    for _ in range(5):
        x = net.conv(x, channels, 4, [3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        channels = 4
    model = net.model(net.linear(net.flat(net.conv(x, 4, 4, [3, 3], pads=[1, 1, 1, 1])), 16, 5))
    assert worst_error(model, net.batch_of(2), tmp_path / "plan", grids, gang=gang) < 1e-6


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
    assert step["bytes_exchanged"] == sum(
        part.length(1)
        for stage in plan.stages
        for number, tile in enumerate(stage.tiles)
        for piece in tile.pieces
        for part in piece.ranges
        if piece.tile != number
    )
    draw_plan(plan, tmp_path / "plan.svg")
    assert "of borders exchanged" in (tmp_path / "plan.svg").read_text()
