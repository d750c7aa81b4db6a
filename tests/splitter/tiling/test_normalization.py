"""Instance and group normalisation: tiles pool their shares, and the answer is ONNX Runtime's."""

import numpy as np
import pytest

from tests.splitter.models import worst_error
from tests.splitter.tiling.test_elementwise import network, spread

EXACT = 5e-6


def normalised(net, x, kind, channels=6):
    scale, bias = (net.constant(net.floats(channels)) for _ in "sb")
    if kind == "instance":
        return net.op("InstanceNormalization", x, scale, bias, epsilon=1e-3)
    groups = {"one": 1, "pairs": 3, "channels": channels}[kind]
    ones, zeros = net.constant(np.ones(groups, np.float32)), net.constant(np.zeros(groups, np.float32))
    inner = net.op("Reshape", x, net.constant(np.array([0, groups, -1])))
    inner = net.op(
        "Reshape", net.op("InstanceNormalization", inner, ones, zeros), net.constant(np.array([0, 6, 9, 11]))
    )
    scale, bias = (net.constant(net.floats(channels, 1, 1)) for _ in "sb")
    return net.op("Add", net.op("Mul", inner, scale), bias)


@pytest.mark.parametrize("kind", ["instance", "one", "pairs", "channels"])
@pytest.mark.parametrize("grid", ["2x2", "3x2"])
def test_a_normalised_map_is_tiled(tmp_path, kind, grid):
    net, x = network()
    x = net.op("Relu", normalised(net, net.op("Add", x, net.constant(np.float32(50))), kind))
    assert spread(net, net.conv(x, 6, 3, [3, 3], pads=[1, 1, 1, 1]), tmp_path, grid) <= EXACT


def test_one_that_also_reads_what_it_folds_is_tiled(tmp_path):
    net, x = network()
    folded = net.op("Reshape", x, net.constant(np.array([0, 3, -1])))
    ones, zeros = net.constant(np.ones(3, np.float32)), net.constant(np.zeros(3, np.float32))
    y = net.op("InstanceNormalization", folded, ones, zeros)
    y = net.op("Reshape", y, net.constant(np.array([0, 6, 9, 11])))
    largest = net.op(
        "Reshape", net.op("ReduceMax", folded, net.constant(np.array([2]))), net.constant(np.array([0, 3]))
    )
    model = net.model(net.op("Concat", largest, net.flat(y), axis=1))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") <= EXACT
