"""Operators that keep rows and columns, on any axes: element by element, along channels, transposed."""

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto

from serfer.splitter.tiling import operators
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from tests.splitter.models import Net, unsplit, worst_error

EXACT = 2e-6
SIZE = (9, 11)


def network(channels=6):
    net = Net(3, *SIZE)
    return net, net.conv("x", 3, channels, 3)


def spread(net, x, directory, grid="2x2"):
    """Return the error of a network whose map `x` is spread over tiles from the image on, and then flattened."""
    model = net.model(net.flat(x))
    graph = with_tile_pools(from_onnx(model, *net.size[1:]))
    blocked = [(node.name, node.kind) for node in graph.nodes[:-1] if not operators.tileable(graph, node)]
    assert blocked == []
    batch = net.batch_of(2)
    one_by_one = np.concatenate([unsplit(model, image[None]) for image in batch])  # a shape may name the batch's size
    return worst_error(model, batch, directory, [grid, "1"], expected=one_by_one)


UNARY = [
    *("Abs", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softplus"),
    *("Softsign", "Tanh", "ThresholdedRelu", "Identity"),
]
OVER_CHANNELS = [
    *((kind, {"axis": axis}) for kind, axis in product(("Softmax", "LogSoftmax", "LpNormalization"), (1, -3))),
    ("LRN", {"size": 3, "alpha": 0.1}),
]


@pytest.mark.parametrize(("kind", "form"), [*((kind, {}) for kind in UNARY), *OVER_CHANNELS], ids=str)
def test_every_activation_and_norm_over_channels(kind, form, tmp_path):
    net, x = network()
    assert spread(net, net.op(kind, x, **form), tmp_path) <= EXACT


def where(net, x):
    return net.op("Where", net.op("Greater", x, 0.1), x, -0.2)


def where_not(net, x):
    small = net.op("Not", net.op("And", net.op("Less", x, net.op("Neg", x)), net.op("LessOrEqual", x, x)))
    return net.op("Where", small, x, net.op("Cast", net.op("Cast", x, to=10), to=1))


def one_sided_clip(net, x):
    return net.op("Clip", x, "", 0.5)


def shuffled_channels(net, x):
    five = net.op("Reshape", net.op("Relu", x), [1, 3, 2, *SIZE])
    x = net.op("Reshape", net.op("Transpose", five, perm=[0, 2, 1, 3, 4]), [-1, 6, *SIZE])
    return net.conv(x, 6, 4, 3, groups=2)


def channels_permuted_by_index(net, x):
    x = net.op("Gather", x, [3, 0, 5, -2, 1, 1], axis=1)
    return net.conv(x, 6, 2, 3)


def channels_picked_one_by_one(net, x):
    """As in the input transform of Inception."""
    parts = []
    for channel in range(3):
        part = net.op("Gather", x, channel, axis=1)
        part = net.op("Unsqueeze", part, [1])
        parts.append(net.op("Add", net.op("Mul", part, 0.4), 0.1))
    return net.conv(net.op("Concat", *parts, axis=1), 3, 4, [3, 3], strides=[2, 2])


def channels_split_and_joined(net, x):
    net.op("Split", x, [2, 4], output="left", others=["right"], axis=1)
    return net.op("Concat", "right", net.op("Sigmoid", "left"), axis=1)


def convnext_block(net, x):
    inner = net.op("Transpose", net.conv(x, 6, 6, 7, groups=6), perm=[0, 2, 3, 1])
    inner = net.op("LayerNormalization", inner, net.floats(6), net.floats(6), axis=-1)
    inner = net.op("MatMul", inner, net.floats(6, 12))
    inner = net.op("Gelu", net.op("Add", inner, net.floats(12)))
    inner = net.op("Mul", net.op("MatMul", inner, net.floats(12, 6)), net.floats(6))
    return net.op("Add", net.op("Transpose", inner, perm=[0, 3, 1, 2]), x)


def layer_norm_written_out(net, x):
    axes = net.constant(np.array([1]))
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes))
    variance = net.op("ReduceMean", net.op("Pow", centred, 2.0), axes)
    root = net.op("Sqrt", net.op("Add", variance, 1e-5))
    return net.op("Mul", net.op("Div", centred, root), net.floats(6, 1, 1))


def gates_of_positions(net, x):
    axes = net.constant(np.array([1]))
    mean, most = net.op("ReduceMean", x, axes), net.op("ReduceMax", x, axes, keepdims=0)
    both = net.op("Concat", mean, net.op("Unsqueeze", most, axes), axis=1)
    return net.op("Mul", x, net.op("Sigmoid", net.conv(both, 2, 1, 7)))


def channels_padded(net, x):
    """As early residual networks do."""
    short = net.op("Slice", x, [0, 0], [99, 99], [2, 3], [2, 2])
    short = net.op("Pad", short, [0, 2, 0, 0, 0, 1, 0, 0])
    return net.op("Add", short, net.conv(x, 6, 9, 3, strides=[2, 2]))


def quantised_weights(net, x):
    weight = net.constant(net.random.integers(-90, 90, (4, 6, 3, 3)).astype(np.int8))
    zeros = net.constant(np.zeros(4, np.int8))
    weight = net.op("DequantizeLinear", weight, np.abs(net.floats(4)) / 100, zeros, axis=0)
    return net.op("Conv", x, weight, kernel_shape=[3, 3])


def largest_channels(net, x):
    return net.op("TopK", x, [2], others=["indices"], axis=1)


def probabilities(net, x):
    return net.op("Transpose", net.op("Softmax", x, axis=1), perm=[0, 2, 3, 1])


def one_channel_without_its_axis(net, x):
    return net.op("Squeeze", net.op("ReduceMax", x, [1]), [1])


def one_channel_with_an_axis_again(net, x):
    least = net.op("ReduceMin", x, [1], keepdims=0)
    return net.op("Concat", x, net.op("Unsqueeze", least, [1]), axis=1)


def sums(net, x):
    return net.op("Max", net.op("Sum", x, x, net.op("Mean", x, net.op("Relu", x))), net.op("Min", x, net.op("Abs", x)))


FORMS = [
    *(where, where_not, one_sided_clip, sums),
    *(shuffled_channels, channels_permuted_by_index, channels_picked_one_by_one, channels_split_and_joined),
    *(convnext_block, layer_norm_written_out, gates_of_positions, channels_padded, quantised_weights, largest_channels),
    *(probabilities, one_channel_without_its_axis, one_channel_with_an_axis_again),
]


@pytest.mark.parametrize("form", FORMS)
def test_operators_in_the_forms_that_exporters_write(form, tmp_path):
    net, x = network()
    # what rounds to float16 may round otherwise in a tile of another size: here all such values are negative
    grid, last = ("2x2", "Relu") if form is where_not else ("3x2", "Tanh")
    assert spread(net, net.op(last, form(net, x)), tmp_path, grid) <= EXACT


@pytest.mark.parametrize("grid", ["2x2", "1x3"])
def test_a_norm_of_the_last_axis_that_an_operator_broadcasts(grid, tmp_path):
    """As in EdgeNeXt's attention: the map has its rows and columns before its channels."""
    net, x = network()
    x = net.op("Transpose", x, perm=[0, 2, 3, 1])
    norm = net.op("ReduceL2", x, [-1], keepdims=1)
    norm = net.op("Expand", norm, [1, *SIZE, 6])
    x = net.op("Transpose", net.op("Div", x, norm), perm=[0, 3, 1, 2])
    assert spread(net, net.conv(x, 6, 4, [3, 3]), tmp_path, grid) <= EXACT


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("form", [{"axis": 1}, {"axis": -3, "keepdims": 0}, {"axis": 1, "select_last_index": 1}])
def test_the_index_of_the_largest_channel(tmp_path, kind, form):
    net, x = network()
    x = net.op("Cast", net.op(kind, net.op("Round", x), **form), to=TensorProto.FLOAT)
    assert spread(net, x, tmp_path, "3x2") == 0


def test_the_index_of_the_largest_row_is_found_in_one_piece(tmp_path):
    net, x = network()
    x = net.op("Cast", net.op("ArgMax", x, axis=2), to=TensorProto.FLOAT)
    model = net.model(net.flat(x))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") == 0


NORM_EXACT = 5e-6


def normalised(net, x, kind, channels=6):
    scale, bias = (net.constant(net.floats(channels)) for _ in "sb")
    if kind == "instance":
        return net.op("InstanceNormalization", x, scale, bias, epsilon=1e-3)
    groups = {"one": 1, "pairs": 3, "channels": channels}[kind]
    ones, zeros = net.constant(np.ones(groups, np.float32)), net.constant(np.zeros(groups, np.float32))
    inner = net.op("Reshape", x, [0, groups, -1])
    inner = net.op("Reshape", net.op("InstanceNormalization", inner, ones, zeros), [0, 6, 9, 11])
    scale, bias = (net.constant(net.floats(channels, 1, 1)) for _ in "sb")
    return net.op("Add", net.op("Mul", inner, scale), bias)


@pytest.mark.parametrize("kind", ["instance", "one", "pairs", "channels"])
@pytest.mark.parametrize("grid", ["2x2", "3x2"])
def test_a_normalised_map_is_tiled(tmp_path, kind, grid):
    net, x = network()
    x = net.op("Relu", normalised(net, net.op("Add", x, 50.0), kind))
    assert spread(net, net.conv(x, 6, 3, 3), tmp_path, grid) <= NORM_EXACT


def test_one_that_also_reads_what_it_folds_is_tiled(tmp_path):
    net, x = network()
    folded = net.op("Reshape", x, [0, 3, -1])
    ones, zeros = net.constant(np.ones(3, np.float32)), net.constant(np.zeros(3, np.float32))
    y = net.op("InstanceNormalization", folded, ones, zeros)
    y = net.op("Reshape", y, [0, 6, 9, 11])
    largest = net.op("Reshape", net.op("ReduceMax", folded, [2]), [0, 3])
    model = net.model(net.op("Concat", largest, net.flat(y), axis=1))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") <= NORM_EXACT
