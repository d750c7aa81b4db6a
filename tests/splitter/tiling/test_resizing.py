"""Resize in every mode, up and down, on maps of any size, against ONNX Runtime's own on the whole map."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serfer.core.exactness import relative_error
from serfer.core.geometry import Grid, Span, grid_rects
from serfer.splitter.network.graph import needed_for
from serfer.splitter.network.interpolation import interpolation_of
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.plan_dir.emit import input_name, output_name, tile_graph
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.regions import infer_regions
from tests.once import one_each
from tests.splitter.models import Net, unsplit
from tests.splitter.tiling.test_elementwise import EXACT, network, spread

PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(net, x, channels, size, **attributes):
    return net.op("Resize", x, "", "", [1, channels, *size], **attributes)


def kinds(net, x):
    return [node.kind for node in net.graph(net.flat(x)).nodes]


def tile_error(net, x, grid):
    """Return how far the map `x`, in tiles, is from ONNX Runtime's on the whole map."""
    model, batch = net.model(net.flat(x)), net.batch_of(1)
    graph = from_onnx(model, *net.size[1:])
    answer = in_tiles(graph, graph.nodes[-1].inputs[0], grid, batch)
    return relative_error(answer.reshape(1, -1), unsplit(model, batch))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("size", [(260, 296), (391, 222), (67, 117), (500, 129)], ids=["twice", "odd", "less", "mixed"])
def test_a_map_too_large_for_whole_matrices(mode, where, size):
    net = Net(1, 130, 148)
    x = resized(net, "x", 1, size, mode=mode, coordinate_transformation_mode=where)
    assert "Resize" in kinds(net, x)
    assert tile_error(net, x, (3, 2)) <= EXACT


@settings(max_examples=40, derandomize=True, database=None)
@given(
    before=st.tuples(st.integers(1, 40), st.integers(1, 160)),
    after=st.tuples(st.integers(2, 90), st.integers(2, 330)),
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    where=st.sampled_from(PLACES),
    rounding=st.sampled_from(ROUNDINGS),
    by_scales=st.booleans(),
    antialias=st.booleans(),
    grid=st.sampled_from([(1, 1), (2, 2), (1, 3), (4, 4)]),
)
def test_any_resize_in_tiles(before, after, mode, where, rounding, by_scales, antialias, grid):
    net = Net(2, *before)
    attributes = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        attributes["nearest_mode"] = rounding
    elif antialias and where == "half_pixel":
        attributes["antialias"] = 1
    if by_scales:
        scales = np.array([1, 1, *((new + 0.5) / old for new, old in zip(after, before, strict=True))], np.float32)
        x = net.op("Resize", "x", "", scales, **attributes)
    else:
        x = resized(net, "x", 2, after, **attributes)
    grid = tuple(min(parts, size) for parts, size in zip(grid, after, strict=True))
    assert tile_error(net, x, grid) <= EXACT


def test_the_rounding_of_a_coordinate_at_a_thousand_rows_is_that_of_the_whole_map():
    net = Net(1, 1201, 4)
    x = resized(net, "x", 1, (3001, 9), mode="linear", coordinate_transformation_mode="align_corners")
    assert tile_error(net, x, (4, 1)) <= EXACT / 4


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_a_pooled_map_spreads_one_value_and_to_the_same_size_is_nothing(tmp_path, mode):
    net = Net(3, 20, 18)
    x = resized(net, net.conv("x", 3, 4, 3), 4, (20, 18), mode=mode)
    gate = resized(net, net.conv(net.op("GlobalAveragePool", x), 4, 4, 1), 4, (20, 18), mode=mode)
    assert ("Expand" in kinds(net, gate), "Resize" in kinds(net, gate)) == (True, False)
    assert spread(net, net.op("Concat", x, gate, axis=1), tmp_path) <= EXACT


@pytest.mark.parametrize("nearest_mode", ROUNDINGS)
def test_repeating_rows_and_columns_is_one_operator_in_every_tile(nearest_mode):
    net = Net(3, 20, 18)
    where = "asymmetric" if nearest_mode == "floor" else "half_pixel"
    x = resized(net, "x", 3, (40, 54), mode="nearest", coordinate_transformation_mode=where, nearest_mode=nearest_mode)
    graph = net.graph(net.flat(x))
    repeated = nearest_mode != "ceil"
    assert [node.kind for node in graph.nodes] == ["Resize", "Flatten"]
    assert (graph.nodes[0].attributes["nearest_mode"] == b"floor") is repeated
    assert tile_error(net, x, (2, 2)) == 0


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("before", "after"), [(3, 5), (11, 13)])
def test_a_tile_that_needs_whole_columns_has_all_their_rows(before, after, mode):
    """By scales, ONNX would make 4 rows of 3, and ONNX Runtime 12 of 11."""
    net = Net(1, before, 200)
    x = resized(net, "x", 1, (after, 200), mode=mode)
    x = net.op("Add", x, net.floats(after, 200))
    assert tile_error(net, x, (1, 4)) <= EXACT


@settings(max_examples=60, derandomize=True, database=None)
@given(
    inputs=st.integers(1, 900),
    outputs=st.integers(1, 1200),
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    where=st.sampled_from(PLACES),
    by_scale=st.booleans(),
    antialias=st.booleans(),
)
def test_weights_of_long_axes_are_those_of_each_input_row(inputs, outputs, mode, where, by_scale, antialias):
    assume(inputs != outputs)  # the runtime copies a map that keeps its size, whatever its scales
    attributes = {"mode": mode, "coordinate_transformation_mode": where}
    if mode != "nearest":
        attributes["antialias"] = int(antialias)
    scale = (outputs + 0.25) / inputs if by_scale else None
    known = interpolation_of(attributes, inputs, outputs, scale, 18)
    net = Net(1, inputs, 1)
    given = [[1, 1, scale, 1]] if by_scale else ["", [1, 1, outputs, 1]]
    model = net.model(net.flat(net.op("Resize", "x", "", *given, **attributes)))
    column = np.random.default_rng(outputs).standard_normal((1, 1, inputs, 1)).astype(np.float32)
    expected = unsplit(model, column)[0]
    mine = known.matrix(Span(0, outputs), Span(0, inputs)) @ column[0, 0, :, 0]
    assert np.abs(mine - expected).max() <= 1e-5


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [(210, 180), (60, 91), (180, 70)], ids=str)
def test_a_resize_has_the_rows_that_onnx_runtime_makes_where_shape_inference_rounds_otherwise(mode, size):
    net = Net(2, *size)
    x = net.op("Relu", net.op("Resize", "x", "", [1, 1, 0.7, 1.3], mode=mode))
    for grid in ((2, 3), (1, 1)):
        assert tile_error(net, x, grid) <= EXACT


GRIDS = ["2x2", "3x2", "1x4"]


def sliced(net, x, starts, stops, axes, steps):
    return net.op("Slice", x, starts, stops, axes, steps)


@one_each(
    "grid",
    GRIDS,
    (
        ("starts", "stops", "axes", "steps"),
        [
            ([0], [2**31], [2], [2]),
            ([1, 1], [99, 10], [2, 3], [2, 3]),
            ([2, 1, 3], [5, 8, 2**63 - 1], [1, 2, 3], [1, 1, 1]),
            ([-1, -2], [-99, -(2**63) + 1], [2, 3], [-1, -2]),
            ([-7], [-1], [-1], [1]),
        ],
    ),
)
def test_slicing_rows_columns_and_channels(tmp_path, grid, starts, stops, axes, steps):
    net, x = network()
    x = sliced(net, x, starts, stops, axes, steps)
    assert spread(net, net.op("Relu", x), tmp_path, grid) <= EXACT


def focus_block_of_yolo(net, x):
    x = sliced(net, x, [1, 1], [9, 11], [2, 3], [1, 1])
    parts = [sliced(net, x, [top, left], [2**31, 2**31], [2, 3], [2, 2]) for top in (0, 1) for left in (0, 1)]
    return net.conv(net.op("Concat", *parts, axis=1), 24, 4, 3)


CHOSEN = {
    "rows": lambda net, x: net.conv(net.op("Gather", x, [7, 7, 0, 3, 4, -1, 2], axis=2), 6, 3, 3),
    "negative padding": lambda net, x: net.op("Pad", x, [0, 0, -2, 1, 0, -1, 3, -1], 0.5),
    "space to depth": lambda net, x: net.op(
        "SpaceToDepth", sliced(net, x, [1, 1], [9, 11], [2, 3], [1, 1]), blocksize=2
    ),
    "YOLO's focus block": focus_block_of_yolo,
}


@one_each("grid", ["2x2", "1x3"], ("form", CHOSEN))
def test_rows_and_columns_that_are_chosen_or_become_channels(tmp_path, form, grid):
    net, x = network()
    assert spread(net, net.op("Sigmoid", CHOSEN[form](net, x)), tmp_path, grid) <= EXACT


@one_each(
    "grid",
    GRIDS,
    (
        "window",
        [
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]},
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
            {"kernel_shape": [3, 2], "strides": [1, 1], "pads": [0, 1, 2, 0]},
            {"kernel_shape": [3, 3], "strides": [3, 2], "dilations": [2, 1], "group": 2},
            {"kernel_shape": [2, 1], "strides": [3, 3], "output_padding": [2, 0]},
            {"kernel_shape": [1, 2], "strides": [4, 3], "pads": [0, 1, 0, 0]},
            {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
            {"kernel_shape": [4, 3], "strides": [3, 2], "auto_pad": "SAME_LOWER", "dilations": [1, 2], "group": 3},
            {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "VALID"},
            {"kernel_shape": [3, 4], "strides": [2, 2], "output_shape": [17, 20]},
            {"kernel_shape": [3, 3], "strides": [2, 2], "output_shape": [18, 22], "auto_pad": "SAME_UPPER"},
            {"kernel_shape": [2, 2], "strides": [2, 3], "output_shape": [19, 34], "output_padding": [1, 1]},
        ],
    ),
)
def test_transposed_convolution(tmp_path, window, grid):
    net, x = network()
    weight, bias = net.floats(6, 2, *window["kernel_shape"]), net.floats(2 * window.get("group", 1))
    assert spread(net, net.op("ConvTranspose", x, weight, bias, **window), tmp_path, grid) <= EXACT


@one_each(
    "grid",
    GRIDS,
    (
        ("unfolded", "perm", "folded"),
        [
            ((2, 2, 2, 9, 11), [0, 1, 4, 2, 5, 3], (2, 18, 22)),
            ((2, 2, 2, 9, 11), [0, 3, 4, 1, 5, 2], (2, 18, 22)),
            ((8, 3, 3, 11, 1), [0, 1, 3, 5, 2, 4], (8, 33, 3)),
        ],
    ),
)
def test_pixel_shuffle_as_exporters_write_it(tmp_path, unfolded, perm, folded, grid):
    net, x = network(channels=8)
    x = net.op("Transpose", net.op("Reshape", x, [0, *unfolded]), perm=perm)
    x = net.conv(net.op("Reshape", x, [0, *folded]), folded[0], 3, [3, 3])
    if folded == (2, 18, 22):
        assert kinds(net, x) == ["Conv", "DepthToSpace", "Conv", "Flatten"]
        assert spread(net, x, tmp_path, grid) <= EXACT
    else:
        assert "DepthToSpace" not in kinds(net, x)


@pytest.mark.parametrize("perm", [[0, 1, 3, 5, 2, 4], [0, 3, 5, 1, 2, 4]], ids=["torch", "ONNX"])
def test_pixel_unshuffle_as_exporters_write_it(tmp_path, perm):
    net = Net(3, 12, 14)
    x = net.conv("x", 3, 2, 3)
    x = net.op("Transpose", net.op("Reshape", x, [0, 2, 6, 2, 7, 2]), perm=perm)
    x = net.conv(net.op("Reshape", x, [0, 8, 6, 7]), 8, 3, [3, 3])
    assert "SpaceToDepth" in kinds(net, x)
    assert spread(net, x, tmp_path) <= EXACT


def in_tiles(graph, output, grid, batch):
    """Return the map `output` of a graph, each tile computed from its part of the images by itself.

    Every operator must have a rule, so there can be no global pooling of a map.
    """
    graph = with_tile_pools(graph)
    nodes = needed_for(graph.nodes, [output])
    assert [node for node in nodes if not operators.tileable(graph, node)] == []
    shape = graph.shape(output)
    rects = grid_rects(shape.height, shape.width, Grid(*grid))
    result = np.empty(shape.of(shape.whole, len(batch)), np.float32)
    for rect, regions in zip(rects, infer_regions(graph, nodes, [{output: rect} for rect in rects]), strict=True):
        tile = tile_graph(graph, nodes, regions, [graph.input], {output: rect})
        part = np.ascontiguousarray(batch[:, :, *regions[graph.input].slices])
        result[shape.slices(rect)] = session_of(tile.model({})).run([output_name(0)], {input_name(0): part})[0]
    return result
