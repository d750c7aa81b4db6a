"""Files of every opset that docs/reference/networks.md names are split exactly."""

import numpy as np
import onnx
import pytest

from serfer.splitter.network.source import load
from tests.splitter.models import Net, unsplit, worst_error

SIZE = (12, 12)


def network(opset):
    """Operators that every opset has in one form: no axes, no limits, no sizes as inputs."""
    net = Net(3, *SIZE, opset=opset)
    x = net.conv("x", 3, 8, [3, 3], pads=[1, 1, 1, 1])
    statistics = [net.constant(np.abs(net.floats(8)) + 0.1) for _ in range(4)]
    x = net.op("Relu", net.op("BatchNormalization", x, *statistics))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.op("Add", x, net.op("Sigmoid", net.conv(x, 8, 8, [3, 3], groups=8, pads=[1, 1, 1, 1])))
    x = net.flat(net.op("GlobalAveragePool", net.op("Concat", x, x, axis=1)))
    return net, net.model(net.linear(x, 16, 5))


@pytest.mark.exact
@pytest.mark.parametrize("opset", range(9, 27))
def test_a_file_of_this_opset_is_split_exactly(opset, tmp_path):
    net, model = network(opset)
    onnx.save(model, tmp_path / "net.onnx")
    batch = net.batch_of(2)
    source, _ = load(tmp_path / "net.onnx", batch)
    assert worst_error(source.onnx, batch, tmp_path / "plan", ["2x2", "1"], expected=unsplit(model, batch)) <= 2e-6
