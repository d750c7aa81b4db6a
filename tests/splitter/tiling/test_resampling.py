"""Operators that choose, repeat or mix rows and columns."""

import numpy as np
import pytest

from serfer.splitter.tiling.from_onnx import from_onnx
from tests.once import one_each
from tests.splitter.models import Net
from tests.splitter.tiling.test_elementwise import EXACT, network, spread

GRIDS = ["2x2", "3x2", "1x4"]


def sliced(net, x, starts, stops, axes, steps):
    return net.op("Slice", x, *(net.constant(np.array(value)) for value in (starts, stops, axes, steps)))


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


def chosen_rows(net, x):
    x = net.op("Gather", x, net.constant(np.array([7, 7, 0, 3, 4, -1, 2])), axis=2)
    return net.conv(x, 6, 3, [3, 3], pads=[1, 1, 1, 1])


def negative_padding(net, x):
    return net.op("Pad", x, net.constant(np.array([0, 0, -2, 1, 0, -1, 3, -1])), net.constant(np.float32(0.5)))


def space_to_depth(net, x):
    return net.op("SpaceToDepth", sliced(net, x, [1, 1], [9, 11], [2, 3], [1, 1]), blocksize=2)


def focus_block_of_yolo(net, x):
    x = sliced(net, x, [1, 1], [9, 11], [2, 3], [1, 1])
    parts = [sliced(net, x, [top, left], [2**31, 2**31], [2, 3], [2, 2]) for top in (0, 1) for left in (0, 1)]
    return net.conv(net.op("Concat", *parts, axis=1), 24, 4, [3, 3], pads=[1, 1, 1, 1])


@one_each("grid", ["2x2", "1x3"], ("form", [chosen_rows, negative_padding, space_to_depth, focus_block_of_yolo]))
def test_rows_and_columns_that_are_chosen_or_become_channels(tmp_path, form, grid):
    net, x = network()
    assert spread(net, net.op("Sigmoid", form(net, x)), tmp_path, grid) <= EXACT


@one_each("grid", GRIDS, ("mode", ["DCR", "CRD"]))
def test_depth_to_space(tmp_path, mode, grid):
    net, x = network(channels=8)
    x = net.op("DepthToSpace", x, blocksize=2, mode=mode)
    assert spread(net, net.conv(x, 2, 3, [3, 3]), tmp_path, grid) <= EXACT


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
    weight = net.constant(net.floats(6, 2, *window["kernel_shape"]))
    bias = net.constant(net.floats(2 * window.get("group", 1)))
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
    x = net.op("Reshape", x, net.constant(np.array([0, *unfolded])))
    x = net.op("Transpose", x, perm=perm)
    x = net.op("Reshape", x, net.constant(np.array([0, *folded])))
    x = net.conv(x, folded[0], 3, [3, 3])
    kinds = [node.kind for node in from_onnx(net.model(net.flat(x)), 9, 11).nodes]
    if folded == (2, 18, 22):
        assert kinds == ["Conv", "DepthToSpace", "Conv", "Flatten"]
        assert spread(net, x, tmp_path, grid) <= EXACT
    else:
        assert "DepthToSpace" not in kinds


@pytest.mark.parametrize("perm", [[0, 1, 3, 5, 2, 4], [0, 3, 5, 1, 2, 4]], ids=["torch", "ONNX"])
def test_pixel_unshuffle_as_exporters_write_it(tmp_path, perm):
    net = Net(3, 12, 14)
    x = net.conv("x", 3, 2, [3, 3], pads=[1, 1, 1, 1])
    x = net.op("Transpose", net.op("Reshape", x, net.constant(np.array([0, 2, 6, 2, 7, 2]))), perm=perm)
    x = net.conv(net.op("Reshape", x, net.constant(np.array([0, 8, 6, 7]))), 8, 3, [3, 3])
    assert "SpaceToDepth" in [node.kind for node in from_onnx(net.model(net.flat(x)), 12, 14).nodes]
    assert spread(net, x, tmp_path) <= EXACT
