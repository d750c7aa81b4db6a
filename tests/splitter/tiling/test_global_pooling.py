"""Global pooling by partial sums: each tile passes on one value for each channel, and results are exact."""

import pytest

from serfer.core.checksum import CHECKSUM_BYTES
from serfer.core.errors import PlanWarning
from serfer.core.geometry import Grid
from serfer.splitter.tiling.global_pooling import with_grid, with_tile_pools
from tests.once import one_each
from tests.splitter.models import Net, split_and_check, through_the_store

SIZE = (11, 14)
CHANNELS = 5
EVERY_TILE = {"2x2": 4, "3x3": 9, "3x2": 6}


def pool(net, x, form, size=SIZE):
    """Append a global pooling, written in one of the forms that exporters use; it ends in a vector."""
    if form in {"GlobalAveragePool", "GlobalMaxPool"}:
        return net.flat(net.op(form, x))
    if form in {"AveragePool", "MaxPool"}:
        return net.flat(net.op(form, x, kernel_shape=list(size)))
    kind, *form = form.split()
    axes = [-1, -2] if "negative" in form else [3, 2] if "turned" in form else [2, 3]
    x = net.op(kind, x, axes, keepdims=int("flat" not in form))
    return x if "flat" in form else net.flat(x)


FORMS = [
    *("GlobalAveragePool", "AveragePool", "ReduceMean", "ReduceMean flat", "ReduceMean flat negative"),
    *("GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMax flat", "ReduceMax turned"),
    *("ReduceSum", "ReduceSum flat negative"),
]


def network(form, size=SIZE, seed=0):
    net = Net(3, *size, seed)
    x = net.op("Relu", net.conv("x", 3, CHANNELS, 3))
    return net, net.linear(pool(net, x, form, size), CHANNELS, 4)


def ends_in_pooling(plan):
    """Return the stages that end in partial pooling."""
    return [number for number, stage in enumerate(plan.stages) if stage.operators[-1].kind == "TilePool"]


@one_each("grid", list(EVERY_TILE), ("form", FORMS))
def test_a_tile_writes_one_value_for_each_channel(tmp_path, form, grid):
    net, output = network(form)
    batch = net.batch_of(3) - 1  # a maximum that is padded with zeros would show
    plan = split_and_check(net, output, tmp_path / "plan", [grid, "1"], batch=batch)
    assert ends_in_pooling(plan) == [0]
    first, last = plan.stages
    assert [len(tile.cells) for tile in first.tiles] == [1] * EVERY_TILE[grid]
    assert all(tile.outputs[0].area == 1 for tile in first.tiles)
    assert last.inputs[0].shape.elements == CHANNELS * EVERY_TILE[grid]
    _, result = through_the_store(tmp_path / "plan", batch)
    assert result.report.stages[0].bytes_out == EVERY_TILE[grid] * (4 * CHANNELS * len(batch) + CHECKSUM_BYTES)
    assert result.report.store.bytes_get == result.report.store.bytes_put


@one_each("grid", ["2x2", "3x3"], ("form", ["GlobalAveragePool", "GlobalMaxPool"]))
def test_a_pooled_and_gated_map_is_passed_on_with_its_partial_pools(tmp_path, form, grid):
    """Squeeze and excite: the map and its pooled shares cross the cut together."""
    net = Net(3, *SIZE)
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    pooled = net.op(form, x)
    y = net.conv(net.op("Mul", x, net.op("Sigmoid", net.conv(pooled, 4, 4, 1))), 4, CHANNELS, 3)
    last = net.op(form, y)
    cuts, output = (f"{pooled}.tiles", f"{last}.tiles"), net.linear(net.flat(last), CHANNELS, 4)
    plan = split_and_check(net, output, tmp_path / "plan", [grid, grid, "1"], cuts=cuts)
    assert ends_in_pooling(plan) == [0, 1]
    assert [len(stage.outputs) for stage in plan.stages] == [2, 1, 1]
    assert plan.stages[0].outputs[1].elements == 4 * EVERY_TILE[grid]


@pytest.mark.exact
@pytest.mark.parametrize("grids", [["2x2", "3x3", "1"], ["1x3", "2x2", "1", "col2"], ["1", "3x3", "1", "col4"]])
def test_pooling_in_the_middle_of_a_chain_is_exact(tmp_path, grids):
    net = Net(3, *SIZE)
    x = net.op("Relu", net.conv("x", 3, 4, 3, strides=[2, 1]))
    x = net.op("Relu", net.conv(x, 4, CHANNELS, 3))
    x = net.linear(pool(net, x, "GlobalAveragePool"), CHANNELS, 9)
    plan = split_and_check(net, net.linear(net.op("Relu", x), 9, 6), tmp_path / "plan", grids)
    assert [str(stage.grid) for stage in plan.stages] == grids


@pytest.mark.parametrize(
    ("size", "form", "attributes"),
    [
        (SIZE, "AveragePool", {"kernel_shape": [11, 13]}),
        (SIZE, "AveragePool", {"kernel_shape": [10, 14]}),
        (SIZE, "AveragePool", {"kernel_shape": [13, 14], "pads": [1, 0, 1, 0]}),
        (SIZE, "MaxPool", {"kernel_shape": [3, 3]}),
        ((1, 1), "GlobalAveragePool", {}),
    ],
)
def test_pooling_that_is_not_global_or_of_one_position_is_not_pooled_in_tiles(size, form, attributes):
    net = Net(3, *size)
    graph = with_tile_pools(net.graph(net.flat(net.op(form, net.op("Relu", "x"), **attributes))))
    assert "TilePool" not in [node.kind for node in graph.nodes]


@pytest.mark.exact
@pytest.mark.parametrize("axes", [[1], [2], [1, 2, 3]])
def test_a_mean_over_other_axes_is_exact(tmp_path, axes):
    net = Net(3, 6, 7)
    x = net.op("ReduceMean", net.op("Relu", "x"), axes, keepdims=1)
    output = net.flat(x)
    assert "TilePool" not in [node.kind for node in with_tile_pools(net.graph(output)).nodes]
    with pytest.warns(PlanWarning, match="no stage can be spread 2x2"):
        split_and_check(net, output, tmp_path / "plan", "2x2")


def test_a_map_that_is_too_small_for_a_grid_is_pooled_in_one_tile():
    net, output = network("GlobalAveragePool", (2, 9))
    graph = with_tile_pools(net.graph(output))
    (pooled,) = [node.output for node in graph.nodes if node.kind == "TilePool"]
    assert with_grid(graph, Grid(3, 3)).shape(pooled).whole.area == 1
    assert with_grid(graph, Grid(2, 3)).shape(pooled).whole.area == 6
    assert with_grid(graph, Grid(1, 4, columns=True)).shape(pooled).whole.area == 1
    assert with_grid(graph, Grid(2, 3), frozenset()).shape(pooled).whole.area == 1
