"""Fully connected layers spread by columns: exact in tiles, through the store and in one piece."""

import numpy as np
import pytest

from serfer.splitter.network.onnx_models import session_of
from tests.once import one_each
from tests.splitter.models import Net, check_bytes_written, check_every_answer, cut_net, room_for, split_and_check

FEATURES, CLASSES = 75, 23


GEMMS = {  # (turned, shape of the bias, other attributes)
    "gemm": (False, (-1,), {}),
    "gemm, transposed": (True, (-1,), {}),
    "gemm without bias": (False, None, {}),
    "gemm, transposed, without bias": (True, None, {}),
    "gemm with one bias for all": (False, (1,), {}),
    "gemm with a bias of one row": (False, (1, -1), {}),
    "gemm with a scalar": (False, (), {}),
    "gemm with factors": (True, (-1,), {"alpha": 0.3, "beta": -2.0}),
}
PRODUCTS = {"matmul": None, "matmul and bias": (-1,), "matmul and row": (1, -1), "matmul and one": (1,)}
FORMS = [*GEMMS, *PRODUCTS]


def layer(net, x, form, before=FEATURES, after=CLASSES):
    """Append a fully connected layer, written in one of the forms that exporters use."""
    turned, shape, others = GEMMS.get(form) or (False, PRODUCTS[form], {})
    matrix = net.floats(before, after) / np.sqrt(before)
    bias = [] if shape is None else [net.floats(*(after if size < 0 else size for size in shape))]
    if form in GEMMS:
        return net.op("Gemm", x, matrix.T if turned else matrix, *bias, transB=int(turned), **others)
    x = net.op("MatMul", x, matrix)
    return net.op("Add", x, *bias) if bias else x


@pytest.mark.exact
@one_each("grid", ["col2", "col3", "col4"], ("form", FORMS))
def test_columns_are_exact_for_every_form_of_a_layer(tmp_path, form, grid):
    net = Net(3, 5, 5)
    plan = split_and_check(net, layer(net, net.flat("x"), form), tmp_path / "plan", [grid])
    (stage,) = plan.stages
    assert str(stage.grid) == grid
    sizes = [tile.outputs[0].cols.size for tile in stage.tiles]
    assert sum(sizes) == CLASSES
    assert max(sizes) - min(sizes) == 1, "23 is divided by none of them"
    assert [tile.macs for tile in stage.tiles] == [FEATURES * size for size in sizes]


@pytest.mark.exact
def test_operators_without_a_tiling_rule_are_computed_whole(tmp_path):
    """An operator behind CumSum along rows leaves the last row and column unread."""
    net = Net(1, 9, 9)
    x = net.op("CumSum", "x", 2)
    x = net.op("MatMul", x, np.eye(9, 8, dtype=np.float32))
    x = net.op("MatMul", np.eye(8, 9, dtype=np.float32), x)
    plan = split_and_check(net, layer(net, net.flat(x), "gemm", 64), tmp_path / "plan", ["col2"])
    assert [str(stage.grid) for stage in plan.stages] == ["col2"]


AFTER = {
    **{kind: lambda net, x, _, kind=kind: net.op(kind, x) for kind in ("Relu", "Sigmoid", "Dropout")},
    "Clip": lambda net, x, _: net.op("Clip", x, -0.5, 0.5),
    "Mul": lambda net, x, _: net.op("Mul", net.floats(CLASSES), x),
    "PRelu": lambda net, x, _: net.op("PRelu", x, net.floats(CLASSES)),
    "Softmax": lambda net, x, _: net.op("Softmax", x, axis=1),
    "Concat": lambda net, x, _: net.op("Concat", x, x, axis=1),
    "another layer": lambda net, x, flat: net.op("Add", x, layer(net, flat, "matmul")),
}


@pytest.mark.exact
@pytest.mark.parametrize("kind", AFTER)
def test_operators_after_a_layer_are_exact_in_its_columns(tmp_path, kind):
    net = Net(3, 5, 5)
    flat = net.flat("x")
    x = AFTER[kind](net, layer(net, flat, "gemm"), flat)
    plan = split_and_check(net, x, tmp_path / "plan", ["col4"])
    assert str(plan.stages[-1].grid) == "col4"


@pytest.mark.exact
def test_two_layers_in_one_stage_are_exact_and_the_first_is_computed_whole_by_every_tile(tmp_path):
    net = Net(3, 5, 5)
    x = net.op("Relu", layer(net, net.flat("x"), "gemm", after=31))
    plan = split_and_check(net, layer(net, x, "gemm, transposed", before=31), tmp_path / "plan", ["col3"])
    assert [tile.macs for tile in plan.stages[0].tiles] == [75 * 31 + 31 * columns for columns in (8, 8, 7)]


def head(net):
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    x = net.op("Relu", layer(net, net.flat(x), "gemm", before=4 * 7 * 9, after=41))
    return net.op("Relu", layer(net, x, "gemm, transposed", before=41, after=29))


@pytest.mark.exact
@pytest.mark.parametrize(
    "grids", [["2x2", "col4", "col2", "1"], ["3x2", "col3", "col4", "col3"], ["1", "1", "1", "col2"]]
)
def test_stages_of_tiles_columns_and_single_tiles_follow_one_another(tmp_path, grids):
    net = Net(3, 7, 9)
    plan = split_and_check(net, layer(net, head(net), "matmul and bias", before=29), tmp_path / "plan", grids)
    assert [str(stage.grid) for stage in plan.stages] == grids


@pytest.mark.exact
def test_one_grid_of_columns_spreads_every_layer_and_moves_only_vectors(tmp_path):
    net = Net(3, 7, 9)
    batch = net.batch_of(2)
    plan = split_and_check(net, layer(net, head(net), "gemm", before=29), tmp_path / "plan", "col4", batch=batch)
    grids = {operator.kind: str(stage.grid) for stage in plan.stages for operator in stage.operators}
    assert grids["Gemm"] == "col4"
    assert grids["Conv"] == "1"
    check_bytes_written(plan, tmp_path / "plan", batch)


def functions_within(plan, limit):
    return all(function.bytes <= limit.room for stage in plan.stages for function in stage.functions)


def groups(stage):
    return [
        [n for n, tile in enumerate(stage.tiles) if tile.function == number] for number in range(len(stage.functions))
    ]


@pytest.mark.exact
@pytest.mark.parametrize(
    ("kilobytes", "grid", "expected"), [(400, "col4", 1), (120, "col4", 4), (170, "col4", 2), (50, "col7", 7)]
)
def test_columns_use_the_fewest_functions_that_hold_them(tmp_path, kilobytes, grid, expected):
    net = Net(4, 10, 10)
    output = layer(net, net.flat("x"), "gemm", before=400, after=203)  # 325 KB
    limit = room_for(kilobytes * 1000)
    plan = split_and_check(net, output, tmp_path / "plan", [grid], limit=limit, precision="fp32")
    (stage,) = plan.stages
    assert len(stage.functions) == expected
    assert functions_within(plan, limit)
    assert [number for group in groups(stage) for number in group] == list(range(len(stage.tiles)))
    assert all(groups(stage))
    assert len({function.weights.path for function in stage.functions}) == expected
    written = sum(function.weights.bytes for function in stage.functions)
    assert 4 * 400 * 203 <= written < 4 * 400 * 203 + 1000 * expected, "each column is stored once"


@pytest.mark.exact
@pytest.mark.parametrize("form", ["gemm", "gemm, transposed", "matmul and bias"])
@pytest.mark.parametrize("after", [513, 770, 1026])
def test_a_bias_with_inline_and_stored_slices_is_reassembled(tmp_path, form, after):
    """A part of a kilobyte stays in the graph, one of more goes to the file."""
    net = Net(1, 3, 3)
    output = layer(net, net.flat("x"), form, before=9, after=after)
    for grid in ("col2", "col3", "col4"):
        split_and_check(net, output, tmp_path / grid, [grid])


@pytest.mark.exact
def test_spreading_over_several_functions_is_chosen_automatically_and_exact(tmp_path):
    net = Net(3, 8, 8)
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    output = layer(net, net.flat(x), "gemm", before=256, after=300)  # 300 KB
    plan = split_and_check(net, output, tmp_path / "plan", limit=room_for(90_000), precision="fp32", weights="zip")
    assert plan.stages[-1].grid.columns
    assert len(plan.stages[-1].functions) > 1
    assert functions_within(plan, plan.limit)
    assert plan.changes == plan.original == ()
    whats = [(way.what, way.functions, way.fits, way.exact) for way in plan.ways]
    assert ("fp32, one function", 1, False, True) in whats
    assert ("fp32, columns over functions", 4, True, True) in whats


@pytest.mark.exact
def test_uneven_columns_fit_their_functions(tmp_path):
    """Five columns in four groups: the first has two fifths of the weights, not a quarter."""
    net = Net(4, 10, 10)
    output = layer(net, net.flat("x"), "gemm without bias", before=400, after=5)  # 8000 B; a column is 1600 B
    limit = room_for(4_000)
    plan = split_and_check(net, output, tmp_path / "plan", limit=limit, precision="fp32", gap="never", weights="zip")
    assert functions_within(plan, limit)


@pytest.mark.exact
def test_a_layer_before_the_last_counts_in_every_function(tmp_path):
    """Two layers in one stage of columns: the first is in every function."""
    net = Net(4, 10, 10)
    x = net.op("Relu", layer(net, net.flat("x"), "gemm without bias", before=400, after=100))  # 160 KB
    output = layer(net, x, "gemm without bias", before=100, after=400)  # 160 KB
    limit = room_for(170_000)
    for grids in ("auto", "col2", "col4"):
        plan = split_and_check(net, output, tmp_path / grids, grids, limit=limit, precision="fp32", weights="zip")
        assert functions_within(plan, limit), grids


@pytest.mark.exact
def test_columns_in_fp16_go_to_half_as_many_functions(tmp_path):
    net = Net(4, 10, 10)
    output = layer(net, net.flat("x"), "gemm", before=400, after=200)  # 320 KB
    limit, batch = room_for(90_000), net.batch_of(2)
    full = cut_net(net, output, tmp_path / "full", ["col4"], limit=limit, precision="fp32")
    half = cut_net(net, output, tmp_path / "half", ["col4"], limit=limit, precision="fp16")
    assert len(full.stages[0].functions) == 4
    assert len(half.stages[0].functions) == 2
    assert functions_within(half, limit)
    rounded = session_of(tmp_path / "half" / half.unsplit.path).run(None, {"input0": batch})[0]
    check_every_answer(None, half, tmp_path / "half", batch, expected=rounded)


@pytest.mark.exact
@pytest.mark.parametrize("name", ["a|b|c|d", "w|1|0|5", "|||", "w|0|3", "input0", "output0", "output0|1|0|12"])
def test_weights_may_have_any_name(tmp_path, name):
    net = Net(3, 5, 5)
    x = net.op("MatMul", net.flat("x"), net.constant(net.floats(75, 24), name))
    output = net.op("Gemm", net.op("Relu", x), net.constant(net.floats(24, 23), "w"))
    for grids in (["col2", "1"], ["1", "col2"], ["1"]):
        directory = tmp_path / "-".join(grids)
        split_and_check(net, output, directory, grids)


@pytest.mark.exact
def test_layers_that_share_a_weight_may_be_cut_differently(tmp_path):
    net = Net(3, 4, 4)
    matrix = net.constant(net.floats(48, 48) / np.float32(7))
    x = net.op("Relu", net.op("MatMul", net.flat("x"), matrix))
    output = net.op("MatMul", x, matrix)
    for grids in (["col2", "col3"], ["1", "col4"], ["col4", "col4"]):
        directory = tmp_path / "-".join(grids)
        split_and_check(net, output, directory, grids)
