"""Operators that keep rows and columns, on any axes: element by element, along channels, transposed."""

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto

from serfer.splitter.tiling import operators
from serfer.splitter.tiling.global_pooling import with_tile_pools
from tests.splitter.models import Net, split_error

EXACT = 2e-6
SIZE = (9, 11)


def network(channels=6):
    net = Net(3, *SIZE)
    return net, net.conv("x", 3, channels, 3)


def spread(net, x, directory, grid="2x2"):
    """Return the error of a network whose map `x` is spread over tiles from the image on, and then flattened."""
    x = net.flat(x)
    graph = with_tile_pools(net.graph(x))
    blocked = [(node.name, node.kind) for node in graph.nodes[:-1] if not operators.tileable(graph, node)]
    assert blocked == []
    return split_error(net, x, directory, [grid, "1"])


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


def channels_picked_one_by_one(net, x):
    """As in the input transform of Inception."""
    parts = [net.op("Unsqueeze", net.op("Gather", x, channel, axis=1), [1]) for channel in range(3)]
    parts = [net.op("Add", net.op("Mul", part, 0.4), 0.1) for part in parts]
    return net.conv(net.op("Concat", *parts, axis=1), 3, 4, [3, 3], strides=[2, 2])


def channels_split_and_joined(net, x):
    left, right = net.op("Split", x, [2, 4], outputs=2, axis=1)
    return net.op("Concat", right, net.op("Sigmoid", left), axis=1)


def convnext_block(net, x):
    inner = net.op("Transpose", net.conv(x, 6, 6, 7, groups=6), perm=[0, 2, 3, 1])
    inner = net.op("LayerNormalization", inner, net.floats(6), net.floats(6), axis=-1)
    inner = net.op("Gelu", net.op("Add", net.op("MatMul", inner, net.floats(6, 12)), net.floats(12)))
    inner = net.op("Mul", net.op("MatMul", inner, net.floats(12, 6)), net.floats(6))
    return net.op("Add", net.op("Transpose", inner, perm=[0, 3, 1, 2]), x)


def layer_norm_written_out(net, x):
    centred = net.op("Sub", x, net.op("ReduceMean", x, [1]))
    variance = net.op("ReduceMean", net.op("Pow", centred, 2.0), [1])
    return net.op("Mul", net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, 1e-5))), net.floats(6, 1, 1))


def gates_of_positions(net, x):
    mean, most = net.op("ReduceMean", x, [1]), net.op("ReduceMax", x, [1], keepdims=0)
    both = net.op("Concat", mean, net.op("Unsqueeze", most, [1]), axis=1)
    return net.op("Mul", x, net.op("Sigmoid", net.conv(both, 2, 1, 7)))


def channels_padded(net, x):
    """As early residual networks do."""
    short = net.op("Slice", x, [0, 0], [99, 99], [2, 3], [2, 2])
    return net.op("Add", net.op("Pad", short, [0, 2, 0, 0, 0, 1, 0, 0]), net.conv(x, 6, 9, 3, strides=[2, 2]))


def quantised_weights(net, x):
    weight, scale = net.random.integers(-90, 90, (4, 6, 3, 3), np.int8), np.abs(net.floats(4)) / 100
    return net.op("Conv", x, net.op("DequantizeLinear", weight, scale, np.zeros(4, np.int8), axis=0))


def shuffled_channels(net, x):
    five = net.op("Reshape", net.op("Relu", x), [1, 3, 2, *SIZE])
    return net.conv(net.op("Reshape", net.op("Transpose", five, perm=[0, 2, 1, 3, 4]), [-1, 6, *SIZE]), 6, 4, 3, 2)


FORMS = {
    "where": lambda net, x: net.op("Where", net.op("Greater", x, 0.1), x, -0.2),
    "one-sided clip": lambda net, x: net.op("Clip", x, "", 0.5),
    "sums": lambda net, x: net.op("Max", net.op("Sum", x, net.op("Mean", x, net.op("Relu", x))), net.op("Min", x, 0.2)),
    "channels permuted by index": lambda net, x: net.conv(net.op("Gather", x, [3, 0, 5, -2, 1, 1], axis=1), 6, 2, 3),
    "largest channels": lambda net, x: net.op("TopK", x, [2], others=["indices"], axis=1),
    "probabilities": lambda net, x: net.op("Transpose", net.op("Softmax", x, axis=1), perm=[0, 2, 3, 1]),
    "one channel without its axis": lambda net, x: net.op("Squeeze", net.op("ReduceMax", x, [1]), [1]),
    "shuffled channels": shuffled_channels,
    "channels picked one by one": channels_picked_one_by_one,
    "channels split and joined": channels_split_and_joined,
    "ConvNeXt's block": convnext_block,
    "layer norm written out": layer_norm_written_out,
    "gates of positions": gates_of_positions,
    "channels padded": channels_padded,
    "quantised weights": quantised_weights,
}


@pytest.mark.parametrize("form", FORMS)
def test_operators_in_the_forms_that_exporters_write(form, tmp_path):
    net, x = network()
    assert spread(net, net.op("Tanh", FORMS[form](net, x)), tmp_path, "3x2") <= EXACT


def test_conditions_and_what_rounds_to_float16_are_tiled(tmp_path):
    """It may round otherwise in a tile of another size: here all such values are negative."""
    net, x = network()
    small = net.op("Not", net.op("And", net.op("Less", x, net.op("Neg", x)), net.op("LessOrEqual", x, x)))
    x = net.op("Where", small, x, net.op("Cast", net.op("Cast", x, to=TensorProto.FLOAT16), to=TensorProto.FLOAT))
    assert spread(net, net.op("Relu", x), tmp_path) <= EXACT


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
    assert split_error(net, net.flat(x), tmp_path, "2x2") == 0


NORM_EXACT = 5e-6


def instance_norm(net, x, groups):
    """Norm groups of the channels as they are exported: as images of so many channels, of one row."""
    folded = net.op("Reshape", x, [0, groups, -1])
    normed = net.op("InstanceNormalization", folded, np.ones(groups), np.zeros(groups))
    return folded, net.op("Reshape", normed, [0, 6, *SIZE])


@pytest.mark.parametrize("groups", [None, 1, 3, 6])
@pytest.mark.parametrize("grid", ["2x2", "3x2"])
def test_a_normalised_map_is_tiled(tmp_path, groups, grid):
    net, x = network()
    x = net.op("Add", x, 50.0)
    if groups is None:
        x = net.op("InstanceNormalization", x, net.floats(6), net.floats(6), epsilon=1e-3)
    else:
        x = net.op("Mul", instance_norm(net, x, groups)[1], net.floats(6, 1, 1))
    assert spread(net, net.conv(net.op("Relu", x), 6, 3, 3), tmp_path, grid) <= NORM_EXACT


def test_one_that_also_reads_what_it_folds_is_tiled(tmp_path):
    net, x = network()
    folded, normed = instance_norm(net, x, 3)
    largest = net.op("Reshape", net.op("ReduceMax", folded, [2]), [0, 3])
    joined = net.op("Concat", largest, net.flat(normed), axis=1)
    assert split_error(net, joined, tmp_path, "2x2") <= NORM_EXACT
