"""What no windows can be made of is refused by its own reason; what a file says is enough, so networks are small."""

import numpy as np
import onnx
import pytest

import serfer
from serfer.core.errors import ModelError
from tests.splitter.models import Net


def refusal(net, tmp_path, *outputs, size=(256, 256), window="auto"):
    model = net.model(outputs[0], dims=("N", "C", "Y", "X"))
    for name in outputs[1:]:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * 4))
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError) as caught:
        serfer.map_plan(tmp_path / "net.onnx", [size], tmp_path / "plan", window=window)
    return str(caught.value)


@pytest.fixture
def net():
    return Net(3, "H", "W")


@pytest.mark.exact
def test_an_operator_without_a_rule_is_not_said_to_look_at_the_whole_image(net, tmp_path):
    x = net.op("CumSum", net.conv("x", 3, 4, [3, 3]), net.constant(np.int64(1)))
    assert "(CumSum) cannot be split: there is no rule for windows of it" in refusal(net, tmp_path, x)


def test_an_operator_on_five_axes_says_so(net, tmp_path):
    x = net.op("Unsqueeze", net.conv("x", 3, 4, [3, 3]), net.constant(np.array([1])))
    weight = net.constant(net.floats(1, 1, 3, 3, 3))
    x = net.op("Conv", x, weight, kernel_shape=[3, 3, 3], pads=[1] * 6)
    x = net.op("Squeeze", x, net.constant(np.array([1])))
    assert "there is no rule for windows of tensors of 5 axes" in refusal(net, tmp_path, x)


@pytest.mark.exact
def test_the_mean_of_each_row_looks_at_the_whole_image(net, tmp_path):
    x = net.conv("x", 3, 4, [3, 3])
    text = refusal(net, tmp_path, net.op("Mul", x, net.op("ReduceMean", x, net.constant(np.array([3])))))
    assert "(ReduceMean) cannot be split: it looks at the whole image" in text


def test_images_that_are_too_small_and_outputs_that_are_not_maps_or_end_far_apart(net, tmp_path):
    text = refusal(net, tmp_path, net.op("Relu", net.conv("x", 3, 4, [3, 3], strides=[8, 8])), size=(8, 8))
    assert "the image is too small" in text
    x = net.conv("x", 3, 4, [3, 3])
    text = refusal(net, tmp_path, x, net.op("Flatten", net.op("GlobalAveragePool", x)))
    assert "a map plan needs outputs that are maps, (N, C, H, W) or (N, H, W), and this network has" in text
    ends = [net.constant(np.array([each])) for each in (0, -150, 2)]
    text = refusal(net, tmp_path, net.op("Relu", x), net.op("Slice", x, *ends), size=(600, 300), window=64)
    assert "the outputs cover parts of the image that are too different" in text


def test_a_size_whose_blocks_do_not_fit_is_refused_as_the_network_refuses_it(net, tmp_path):
    x = net.op("SpaceToDepth", net.conv("x", 3, 4, [3, 3]), blocksize=2)
    text = refusal(net, tmp_path, x, size=(256, 255))
    assert "(SpaceToDepth) cannot be served: it takes maps whose sides are multiples of 2, not 254 x 253" in text
