"""Networks of public reports, and what is said of those that cannot be read: one small graph each.

The numbers after the names are those of the projects' issues. What torch exports is slow: it is exported here.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import serfer
from serfer.core.errors import ModelError
from tests.splitter.models import Net, saved

MAP = ("N", "C", "H", "W")


def split(net, output, tmp_path, dims=MAP, size=None, **options):
    """Split a network on 2x2 by what users call, which compares it with ONNX Runtime on two images."""
    example = None if size is None else np.zeros((1, net.size[0], *size), np.float32)
    return serfer.split(
        net.save(tmp_path, output, dims=dims), example, tmp_path / "plan", **{"grids": (2, 2)} | options
    )


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (20, 2), (21, 4)])
def test_group_normalization(opset, scales, tmp_path):
    net = Net(3, 12, 10, opset=21)
    scale, bias = net.floats(2, scales)
    x = net.op("GroupNormalization", net.conv("x", 3, 4, 3), scale, bias, num_groups=2, epsilon=1e-4)
    model = net.model(net.conv(x, 4, 4, 3), dims=MAP)
    model.opset_import[0].version = opset  # ONNX's checker refuses the operator of 18 to 20, which ONNX Runtime runs
    plan = serfer.split(saved(tmp_path, model), out=tmp_path / "plan", grids=(2, 2))
    assert len(plan.stages[0].tiles) == 4


def padded_by_nothing_and_summed_over_a_stack(net, x):
    first = net.op("Pad", x, [0] * 8, mode="reflect")
    maps = [net.op("Unsqueeze", branch, [0]) for branch in (first, net.op("Relu", first), net.op("Tanh", first))]
    return net.conv(net.op("ReduceSum", net.op("Concat", *maps, axis=0), [0], keepdims=0), 4, 4, 3)


def unpooled(net, x):
    """SegNet of open-mmlab: MaxPool with indices, MaxUnpool; of equal values, such as zeros, the first counts."""
    pooled, indices = net.op("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("MaxUnpool", net.conv(pooled, 4, 4, 3), indices, kernel_shape=[2, 2], strides=[2, 2])
    return net.conv(x, 4, 4, 3)


def flattened_by_its_shape(net, x):
    """onnx 4101, 4529: Softmax of opset 11 behind a Reshape to a shape that is computed from a free batch."""
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    size = net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), 0, axis=0), axes=[0])
    return net.op("Softmax", net.linear(net.op("Reshape", x, net.op("Concat", size, [-1], axis=0)), 120, 5))


CROP = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
DEFORM = {"kernel_shape": [3, 3], "pads": [1] * 4}
REPORTS = {  # what follows on a convolution to 4 channels
    # onnxruntime 22177: Pad and AveragePool that count the padding were fused wrongly
    "counted padding": lambda net, x: net.op(
        "AveragePool", net.op("Pad", x, [0, 0, 1, 1] * 2), kernel_shape=[3, 3], count_include_pad=1
    ),
    "flattened by its shape": flattened_by_its_shape,
    # onnx 4529: Softmax of opset 11 flattens from its axis on
    "softmax from its axis on": lambda net, x: net.op("Softmax", x, axis=1),
    # keras-onnx 34, onnx 3050: Upsample and BatchNormalization of opset 9
    "upsampled": lambda net, x: net.op(
        "BatchNormalization", net.op("Upsample", x, [1.0, 1.0, 2.0, 2.0]), *np.abs(net.floats(4, 4))
    ),
    # torchvision's deform_conv2d
    "deformed": lambda net, x: net.op("DeformConv", x, net.floats(4, 4, 3, 3), net.conv(x, 4, 18, 3), **DEFORM),
    "sampled by a grid": lambda net, x: net.op(
        "GridSample", x, np.clip(net.floats(1, 12, 10, 2), -1, 1), mode="linear"
    ),
    "cropped": lambda net, x: net.op("Resize", x, [0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9], "", [1, 4, 20, 20], **CROP),
    "summed over a stack": padded_by_nothing_and_summed_over_a_stack,
    "unpooled": lambda net, x: unpooled(net, net.op("Relu", x)),
    "unpooled without an activation": unpooled,
    "named with slashes and colons": lambda net, x: net.op(
        "Conv", x, net.constant(net.floats(4, 4, 3, 3), "a/b:0/w"), pads=[1] * 4, output="model/conv/Conv2D:0"
    ),
    "clipped at infinity": lambda net, x: net.op("Clip", x, 0.0, np.float32(np.inf)),
}
OPSETS = {"counted padding": 13, "flattened by its shape": 11, "softmax from its axis on": 11, "upsampled": 9}
WHOLE = ("deformed", "sampled by a grid", "cropped")
"""Those that have no tiles."""


@pytest.mark.parametrize("report", REPORTS)
def test_graphs_that_other_tools_read_wrongly(report, tmp_path):
    net = Net(3, 12, 10, opset=OPSETS.get(report, 20))
    output = REPORTS[report](net, net.conv("x", 3, 4, 3))
    flat = report == "flattened by its shape"
    grids = "auto" if report in WHOLE else ["2x2", "1"] if flat else (2, 2)
    plan = split(net, output, tmp_path, ("N", "K") if flat else MAP, grids=grids)
    assert report in WHOLE or len(plan.stages[0].tiles) == 4


@pytest.mark.parametrize(("value", "outputs"), [("output", 1), ("input", 2)])
def test_an_output_that_is_listed_twice_or_is_the_input(value, outputs, tmp_path):
    net = Net(3, 12, 10)
    model = net.model(net.conv("x", 3, 4, 3), dims=("N", 4, 12, 10))
    model.graph.output.append(getattr(model.graph, value)[0])
    plan = serfer.split(saved(tmp_path, model), out=tmp_path / "plan", grids=(2, 2))
    assert len(plan.output_tensors) == outputs
    assert len(plan.stages[0].tiles) == 4


@pytest.mark.parametrize("fault", [None, "elsewhere"])
def test_external_data_in_several_files_are_read_or_named(fault, tmp_path):
    """onnxruntime 11848: external data, each tensor in a file of its own."""
    net, home = Net(3, 12, 10), tmp_path / "home"
    home.mkdir()
    model, path = net.model(net.conv(net.conv("x", 3, 16, 3), 16, 4, 3), dims=MAP), home / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=100)
    file, *others = sorted(file for file in home.iterdir() if file != path)
    assert others
    if fault is None:
        assert len(serfer.split(path, out=tmp_path / "plan", grids=(2, 2)).stages[0].tiles) == 4
        return
    file.rename(tmp_path / file.name)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = f"../{file.name}" if entry.value == file.name else entry.value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        serfer.split(path, out=tmp_path / "plan")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_more_than_2_gb_meet_a_limit_that_is_named(tmp_path):
    """onnx 5249, 6172, 6352: tools fail on models above 2 GB, as protobuf holds no more."""
    many = 8192
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[many, many, 3, 3])
    weights.data_location = TensorProto.EXTERNAL
    size = 4 * many * many * 9
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(size))):
        weights.external_data.add(key=key, value=value)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)  # of zeros, which take no place
    net = Net(3, 8, 8)
    model = net.model(net.conv("x", 3, many, 1), dims=MAP)
    model.graph.initializer.append(weights)
    last = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Conv", [last, "w"], ["y"], pads=[1] * 4))
    model.graph.output[0].name = "y"
    with pytest.raises(ModelError, match=r"a stage needs about 7,\d+ MB of memory, .* allows 3,008"):
        serfer.split(saved(tmp_path, model), out=tmp_path / "plan")


@pytest.mark.slow
def test_an_instance_norm_in_float16_whose_variance_overflows(tmp_path):
    """onnxruntime 10079, mlx 4228: the variance of values of 512 is beyond float16's range."""
    net = Net(3, 12, 10)
    x = net.op("Mul", net.conv("x", 3, 4, 3), 512.0)
    x = net.op("InstanceNormalization", x, np.ones(4), np.zeros(4))
    plan = split(net, net.conv(x, 4, 4, 3), tmp_path, precision="fp16")
    with serfer.open(tmp_path / "plan", store="memory://", workers="inprocess") as pipeline:
        assert np.isfinite(pipeline.run(net.batch_of(1))).all()
    assert plan.stages


def test_sizes_and_axes_that_a_network_does_not_take_are_refused(tmp_path):
    net = Net(3, "H", "W")
    fine = net.conv("x", 3, 4, 3, strides=[16, 16])
    coarse = net.conv(fine, 4, 4, [2, 2], strides=[2, 2])
    again = net.op("Resize", coarse, "", [1.0, 1.0, 2.0, 2.0])
    joined = net.op("Concat", again, fine, axis=1)
    shape = net.op("Cast", net.op("Shape", joined), to=TensorProto.FLOAT)
    x = net.op("Div", joined, net.op("ReduceProd", shape, keepdims=0))
    with pytest.raises(ModelError, match=rf"of 321 x 330: it takes 320 x 320.*{joined}"):
        split(net, x, tmp_path, size=(321, 330))
    net = Net(3, 12, 10)
    with pytest.raises(ModelError, match="takes images of 12 x 10 alone, not of 24 x 10"):
        split(net, net.conv("x", 3, 4, 3), tmp_path, dims=("N", "C", 12, 10), size=(24, 10))
    net = Net(3, 8, 16)
    net.size = (3, 4, 8, 16)
    volume = net.op("Conv", "x", net.floats(4, 3, 3, 3, 3), kernel_shape=[3, 3, 3], pads=[1] * 6)
    with pytest.raises(ModelError, match="takes tensors of 5 axes, not images"):
        split(net, volume, tmp_path, dims=("N", "C", "D", "H", "W"))
