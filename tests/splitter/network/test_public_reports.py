"""Networks of public reports, and what is said of those that cannot be read: one small graph each."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import serfer
from serfer.core.errors import ModelError
from splitter.network.source import load
from tests.splitter.models import Net


def split(net, output, tmp_path, dims=("N", "C", "H", "W"), size=None, **attributes):
    """Split a network on 2x2 by what users call, which compares it with ONNX Runtime on two images."""
    onnx.save(net.model(output, dims=dims), tmp_path / "net.onnx")
    example = None if size is None else np.zeros((1, net.size[0], *size), np.float32)
    return serfer.split(tmp_path / "net.onnx", example, tmp_path / "plan", grids=(2, 2), **attributes)


def padded(net, x, before=3, after=4):
    return net.conv(x, before, after, [3, 3], pads=[1, 1, 1, 1])


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (20, 2), (21, 4)])
def test_group_normalization(opset, scales, tmp_path):
    net = Net(3, 12, 10, opset=21)
    scale, bias = net.constant(net.floats(scales)), net.constant(net.floats(scales))
    x = net.op("GroupNormalization", padded(net, "x"), scale, bias, num_groups=2, epsilon=1e-4)
    model = net.model(padded(net, x, 4), dims=("N", "C", "H", "W"))
    model.opset_import[0].version = opset  # ONNX's checker refuses the operator of 18 to 20, which ONNX Runtime runs
    onnx.save(model, tmp_path / "net.onnx")
    plan = serfer.split(tmp_path / "net.onnx", out=tmp_path / "plan", grids=(2, 2))
    assert len(plan.stages[0].tiles) == 4


def test_a_constant_sampling_grid(tmp_path):
    net = Net(3, 12, 10)
    grid = net.constant(np.clip(net.floats(1, 12, 10, 2), -1, 1))
    split(net, net.op("GridSample", padded(net, "x"), grid, mode="linear"), tmp_path)


def test_a_resize_that_crops_and_names_the_batch_in_its_sizes(tmp_path):
    net = Net(3, 12, 10)
    roi = net.constant(np.array([0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9], np.float32))
    sizes = net.constant(np.array([1, 4, 20, 20]))
    x = net.op(
        "Resize", padded(net, "x"), roi, "", sizes, mode="linear", coordinate_transformation_mode="tf_crop_and_resize"
    )
    split(net, x, tmp_path)


def test_padding_by_nothing_and_the_sum_of_a_stack_keep_a_network_in_tiles(tmp_path):
    net = Net(3, 12, 10)
    first = net.op("Pad", padded(net, "x"), net.constant(np.zeros(8, np.int64)), mode="reflect")
    axis = net.constant(np.array([0]))
    maps = [net.op("Unsqueeze", each, axis) for each in (first, net.op("Relu", first), net.op("Tanh", first))]
    total = net.op("ReduceSum", net.op("Concat", *maps, axis=0), axis, keepdims=0)
    plan = split(net, padded(net, total, 4), tmp_path)
    assert [len(stage.tiles) for stage in plan.stages] == [4]


def refusal(tmp_path, net, output, **attributes):
    with pytest.raises(ModelError) as caught:
        split(net, output, tmp_path, **attributes)
    return str(caught.value)


def test_a_size_that_the_network_does_not_take_is_named_with_one_that_it_takes(tmp_path):
    net = Net(3, "H", "W")
    fine = net.conv("x", 3, 4, [3, 3], strides=[16, 16], pads=[1, 1, 1, 1])
    coarse = net.conv(fine, 4, 4, [2, 2], strides=[2, 2])
    again = net.op("Resize", coarse, "", net.constant(np.array([1, 1, 2, 2], np.float32)))
    joined = net.op("Concat", again, fine, axis=1)
    shape = net.op("Cast", net.op("Shape", joined), to=TensorProto.FLOAT)
    x = net.op("Div", joined, net.op("ReduceProd", shape, keepdims=0))
    text = refusal(tmp_path, net, x, size=(321, 330))
    assert text.startswith("the model does not take images of 321 x 330: it takes 320 x 320")
    assert joined in text


def test_a_fixed_size_is_named(tmp_path):
    net = Net(3, 12, 10)
    assert refusal(tmp_path, net, padded(net, "x"), size=(24, 10)) == (
        "the model takes images of 12 x 10 alone, not of 24 x 10"
    )


def test_an_input_with_three_axes_of_space_is_named(tmp_path):
    weights = numpy_helper.from_array(np.ones((4, 1, 3, 3, 3), np.float32), "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3, 3])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, 16, 16])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 14, 14])
    model = helper.make_model(
        helper.make_graph([conv], "net", [given], [made], [weights]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"takes tensors of 5 axes, not images"):
        serfer.split(tmp_path / "net.onnx", out=tmp_path / "plan")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("restnet50", r"unknown model 'restnet50' \(did you mean resnet50\?\)"),
        ("resnet.pt", "holds weights.*write a function"),
        ("net.py", "net.py:make"),
        ("net.py:boom", r"weights file missing \(.*net.py, line 2, in helper\)"),
    ],
)
def test_what_is_no_model_is_told_what_it_lacks(model, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "def helper():\n    raise OSError('weights file missing')\n\n\ndef boom():\n    helper()\n"
    )
    with pytest.raises(ModelError, match=words):
        load(model, np.zeros((1, 3, 8, 8), np.float32))


def test_a_missing_size_is_told_before_the_users_file_is_imported(tmp_path):
    (tmp_path / "net.py").write_text("raise OSError('imported')\n")
    with pytest.raises(ModelError, match="give --size"):
        load(f"{tmp_path / 'net.py'}:make", None)
