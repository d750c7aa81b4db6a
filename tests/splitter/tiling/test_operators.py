"""Every operator that can be tiled, position by position: its whole output map is the network's answer."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from serfer.core.exactness import relative_error
from serfer.splitter.network.source import mean_matrix
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import cut_points
from tests.once import one_each
from tests.splitter.models import Net, cut, run_tiles, split_error

GRIDS = ["1", "1x3", "2x2", "3x2"]
EXACT = 1e-6


def check(net, x, expected, batch, directory, grid):
    """Compare the map `x` of a network, computed in tiles, with a tensor of torch's; x must be tileable."""
    plan = cut(net.model(net.flat(x)), batch.shape[2:], directory, [grid, "1"])
    assert relative_error(run_tiles(plan, directory, batch), expected.flatten(1).numpy()) <= EXACT


@one_each(
    "grid",
    GRIDS,
    ("include", [0, 1]),
    (
        ("kernel", "stride", "padding", "ceil", "size"),
        [
            ((2, 2), (2, 2), (0, 0), True, (13, 17)),
            ((3, 3), (2, 2), (1, 1), True, (12, 15)),
            ((3, 2), (2, 2), (1, 1), True, (14, 12)),
            ((3, 3), (3, 3), (1, 1), True, (17, 17)),
            ((3, 3), (1, 1), (1, 1), False, (9, 10)),
            ((5, 3), (3, 2), (2, 0), True, (16, 16)),
            ((1, 1), (2, 2), (0, 0), True, (8, 8)),
        ],
    ),
)
def test_average_pooling_equals_torchs(tmp_path, grid, include, kernel, stride, padding, ceil, size):
    net = Net(2, *size)
    window = {"kernel_shape": kernel, "strides": stride, "pads": padding * 2, "ceil_mode": int(ceil)}
    x, batch = net.op("AveragePool", "x", count_include_pad=include, **window), net.batch_of(2)
    expected = functional.avg_pool2d(torch.from_numpy(batch), kernel, stride, padding, ceil, bool(include))
    check(net, x, expected, batch, tmp_path, grid)


@one_each(
    "grid",
    GRIDS,
    (
        ("kernel", "stride", "padding", "dilation", "ceil"),
        [
            *((3, 2, 1, 1, True), (2, 2, 0, 1, True), (3, 2, 1, 2, True), (3, 1, 1, 3, False), (3, 3, 1, 1, True)),
            (1, 2, 0, 1, True),
        ],
    ),
)
def test_max_pooling_equals_torchs(tmp_path, grid, kernel, stride, padding, dilation, ceil):
    net = Net(2, 17, 14)
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4, "dilations": [dilation] * 2}
    x = net.op("MaxPool", "x", ceil_mode=int(ceil), **window)
    batch = net.batch_of(2) - 5  # all negative: a zero from the padding would win
    expected = functional.max_pool2d(torch.from_numpy(batch), kernel, stride, padding, dilation, ceil)
    check(net, x, expected, batch, tmp_path, grid)


@one_each(
    "grid", GRIDS, (("size", "outputs"), [((13, 17), (6, 6)), ((5, 4), (7, 9)), ((12, 12), (6, 4)), ((9, 9), (3, 3))])
)
def test_adaptive_average_pooling_equals_torchs_at_any_size(tmp_path, grid, size, outputs):
    net = Net(3, *size)
    cols = mean_matrix(size[1], outputs[1]).T
    x = net.op("MatMul", mean_matrix(size[0], outputs[0]), net.op("MatMul", "x", cols))
    batch = net.batch_of(2)
    check(net, x, functional.adaptive_avg_pool2d(torch.from_numpy(batch), outputs), batch, tmp_path, grid)


@one_each(
    "grid",
    ["2x2", "3x3"],
    ("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"]),
    ("kind", ["Conv", "MaxPool", "AveragePool"]),
)
def test_automatic_padding(tmp_path, mode, kind, grid):
    net = Net(2, 14, 11)
    window = {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": mode}
    weights = [net.floats(3, 2, 4, 3)] if kind == "Conv" else []
    x = net.op(kind, "x", *weights, **window)
    assert split_error(net, net.flat(x), tmp_path, [grid, "1"]) <= EXACT


@one_each(
    "grid", ["2x2", "3x3"], ("then", ["Conv", "MaxPool", "AveragePool", "Relu"]), ("axes", [None, [2, 3], [-1, -2]])
)
def test_padding_as_an_operator_of_its_own(tmp_path, grid, then, axes):
    net = Net(2, 9, 10)
    amounts = [0, 0, 4, 1, 0, 0, 2, 3] if axes is None else [4, 1, 2, 3]
    x = net.op("Pad", "x", amounts, -0.5, *([axes] if axes else []))
    if then == "Conv":
        x = net.conv(x, 2, 3, [3, 3])
    else:
        x = net.op(then, x, **({"kernel_shape": [2, 2]} if then != "Relu" else {}))
    assert split_error(net, net.flat(x), tmp_path, [grid, "1"]) <= EXACT


@pytest.mark.exact
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("amounts", [[1, 1, 1, 1], [3, 0, 2, 4]])
def test_padding_that_repeats_the_image_is_exact(tmp_path, mode, amounts):
    net = Net(2, 9, 9)
    x = net.op("Pad", "x", [0, 0, *amounts[:2], 0, 0, *amounts[2:]], mode=mode)
    x = net.op("Relu", net.conv(x, 2, 2, [3, 3]))
    assert split_error(net, net.flat(x), tmp_path, "2x2") <= EXACT


@pytest.mark.parametrize("before", ["Conv", "MaxPool"])
def test_batch_norm_is_folded_into_a_convolution_before_it(before, tmp_path):
    net = Net(2, 10, 10)
    weights = [net.floats(2, 2, 3, 3)] if before == "Conv" else []
    x = net.op(before, "x", *weights, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = net.flat(net.op("BatchNormalization", x, *net.floats(3, 2), np.abs(net.floats(2)) + 0.5))
    kinds = [before, *(["BatchNormalization"] if before == "MaxPool" else []), "Flatten"]
    assert [node.kind for node in net.graph(x).nodes] == kinds
    assert split_error(net, x, tmp_path, ["3x3", "1"]) <= 5e-6


@one_each(
    "grid",
    ["2x2", "3x2"],
    ("shape", [(4, 1, 1), (1,), (), (9, 9), (4, 9, 9), (9,), (9, 1), (4, 1, 9), (1, 4, 9, 1)]),
    ("kind", ["Add", "Mul", "PRelu"]),
)
def test_a_constant_that_varies_over_the_map_is_sliced_with_it(tmp_path, kind, shape, grid):
    net = Net(3, 9, 9)
    x = net.op(kind, net.conv("x", 3, 4, 3), net.floats(*shape))
    output = net.flat(x)
    graph = net.graph(output)
    assert all(operators.tileable(graph, node) for node in graph.nodes if node.kind == kind)
    assert split_error(net, output, tmp_path, [grid, "1"], cuts=(x,)) <= EXACT


@pytest.mark.exact
def test_a_map_that_a_constant_stretches_is_exact(tmp_path):
    net = Net(3, 1, 9)
    x = net.op("Add", "x", net.floats(3, 4, 9))
    x = net.op("Relu", net.conv(x, 3, 2, 3))
    assert split_error(net, net.flat(x), tmp_path, ["2x2", "1"]) <= EXACT


@pytest.mark.exact
def test_squeeze_and_excite_ends_the_tiled_part_and_is_exact(tmp_path):
    net = Net(3, 12, 12)
    x = net.conv("x", 3, 4, 3)
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 4, 4, 1))
    assert split_error(net, net.flat(net.op("Mul", x, gate)), tmp_path, "2x2") <= EXACT


@pytest.mark.exact
def test_a_convolution_over_channels_is_exact(tmp_path):
    """Efficient channel attention: one axis, so one stride."""
    net = Net(3, 12, 12)
    x = net.conv("x", 3, 8, 3)
    gate = net.op("Reshape", net.op("GlobalAveragePool", x), [0, 1, 8])
    gate = net.op("Conv", gate, net.floats(1, 1, 3), kernel_shape=[3], pads=[1, 1], strides=[1])
    gate = net.op("Reshape", net.op("Sigmoid", gate), [0, 8, 1, 1])
    assert split_error(net, net.flat(net.op("Mul", x, gate)), tmp_path, "2x2") <= EXACT


@pytest.mark.filterwarnings("ignore::serfer.core.errors.PlanWarning")  # of cuts without a map to spread
def test_a_stage_never_ends_in_a_tensor_that_is_neither_map_nor_vector(tmp_path):
    net = Net(3, 8, 8)
    x = net.conv("x", 3, 4, 3)
    x = net.op("ReduceSum", net.op("Softmax", net.op("Reshape", x, [0, 4, 64]), axis=2), [1], keepdims=0)
    output = net.linear(x, 64, 5)
    for stages in range(1, len(cut_points(net.graph(output)))):
        assert split_error(net, output, tmp_path / str(stages), "2x2", stages) <= EXACT


@pytest.mark.exact
def test_an_operator_with_two_outputs_is_exact(tmp_path):
    net = Net(4, 8, 8)
    x = net.conv("x", 4, 6, 3)
    left, right = net.op("Split", x, outputs=2, axis=1, num_outputs=2)
    x = net.op("Concat", right, net.op("Sigmoid", left), axis=1)
    assert split_error(net, net.flat(x), tmp_path, "2x2") <= EXACT


@one_each(
    "grid",
    GRIDS,
    ("include", [0, 1]),
    (("kernel", "pads"), [([1, 2], [0, 0, 0, 0]), ([1, 3], [0, 1, 0, 1]), ([1, 2], [0, 1, 0, 0])]),
)
def test_a_mean_that_ceil_mode_ends_differently_in_each_direction(tmp_path, grid, include, kernel, pads):
    net = Net(1, 8, 7)
    x = net.op(
        "AveragePool", "x", kernel_shape=kernel, strides=[2, 2], pads=pads, ceil_mode=1, count_include_pad=include
    )
    assert split_error(net, net.flat(x), tmp_path, [grid, "1"]) <= EXACT


def test_work_is_counted_by_hand():
    net = Net(4, 10, 10)
    x = net.conv("x", 4, 6, 3, groups=2)
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    graph = net.graph(net.linear(net.flat(x), 150, 7))
    macs = [operators.macs(graph, node, graph.shape(node.output).whole.area) for node in graph.nodes]
    assert macs == [10 * 10 * 6 * 2 * 9, 0, 0, 150 * 7]
    assert [operators.macs(graph, graph.nodes[-1], columns) for columns in (1, 3, 7)] == [150, 450, 1050]
