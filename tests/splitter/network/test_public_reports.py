"""Networks of public reports, and what is said of those that cannot be read: one small graph each.

The numbers after the names are those of the projects' issues. What torch exports is slow: it is exported here.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import serfer
from serfer.core.errors import ModelError
from tests.splitter.models import Net


def split(net, output, tmp_path, dims=("N", "C", "H", "W"), size=None, **attributes):
    """Split a network on 2x2 by what users call, which compares it with ONNX Runtime on two images."""
    onnx.save(net.model(output, dims=dims), tmp_path / "net.onnx")
    example = None if size is None else np.zeros((1, net.size[0], *size), np.float32)
    return serfer.split(tmp_path / "net.onnx", example, tmp_path / "plan", grids=(2, 2), **attributes)


def padded(net, x, before=3, after=4):
    return net.conv(x, before, after, 3)


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


def sampled_by_a_constant_grid(net):
    grid = net.constant(np.clip(net.floats(1, 12, 10, 2), -1, 1))
    return net.op("GridSample", padded(net, "x"), grid, mode="linear")


def cropped_by_a_resize_that_names_the_batch(net):
    roi = net.constant(np.array([0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9], np.float32))
    sizes, where = net.constant(np.array([1, 4, 20, 20])), "tf_crop_and_resize"
    return net.op("Resize", padded(net, "x"), roi, "", sizes, mode="linear", coordinate_transformation_mode=where)


def padded_by_nothing_and_summed_over_a_stack(net):
    first = net.op("Pad", padded(net, "x"), np.zeros(8, np.int64), mode="reflect")
    axis = net.constant(np.array([0]))
    maps = [net.op("Unsqueeze", branch, axis) for branch in (first, net.op("Relu", first), net.op("Tanh", first))]
    return padded(net, net.op("ReduceSum", net.op("Concat", *maps, axis=0), axis, keepdims=0), 4)


def unpooled(net, before="Relu"):
    """SegNet of open-mmlab: MaxPool with indices, MaxUnpool; of equal values, such as zeros, the first counts."""
    x = net.op(before, padded(net, "x"))
    net.nodes.append(helper.make_node("MaxPool", [x], ["p", "i"], "pool", kernel_shape=[2, 2], strides=[2, 2]))
    x = net.op("MaxUnpool", padded(net, "p", 4), "i", kernel_shape=[2, 2], strides=[2, 2])
    return padded(net, x, 4)


def unpooled_without_an_activation(net):
    return unpooled(net, "Identity")


def recurrent_over_rows(net):
    x = net.op("Transpose", net.conv("x", 3, 4, [3, 10]), perm=[2, 0, 1, 3])  # (rows, N, channels, 1)
    x = net.op("Squeeze", x, [3])
    weights = net.constant(net.floats(1, 20, 4)), net.constant(net.floats(1, 20, 5))
    x = net.op("Squeeze", net.op("LSTM", x, *weights, hidden_size=5), [1])
    return net.op("Transpose", x, perm=[1, 0, 2])


def pooled_as_opset_13_pads(net):
    """onnxruntime 22177: Pad and AveragePool that count the padding were fused wrongly."""
    pads = net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    return net.op("AveragePool", net.op("Pad", padded(net, "x"), pads), kernel_shape=[3, 3], count_include_pad=1)


def flattened_by_its_shape(net):
    """onnx 4101, 4529: Softmax of opset 11 behind a Reshape to a shape that is computed from a free batch."""
    x = net.op("MaxPool", padded(net, "x"), kernel_shape=[2, 2], strides=[2, 2])
    size = net.op("Gather", net.op("Shape", x), 0, axis=0)
    size = net.op("Unsqueeze", size, axes=[0])
    x = net.op("Reshape", x, net.op("Concat", size, [-1], axis=0))
    return net.op("Softmax", net.linear(x, 120, 5))


def softmax_from_its_axis_on(net):
    """onnx 4529: Softmax of opset 11 flattens from its axis on."""
    return net.op("Softmax", padded(net, "x"), axis=1)


def upsampled_as_opset_9_does(net):
    """keras-onnx 34, onnx 3050: Upsample and BatchNormalization of opset 9."""
    x = net.op("Upsample", padded(net, "x"), [1.0, 1.0, 2.0, 2.0], mode="nearest")
    return net.op("BatchNormalization", x, *(np.abs(net.floats(4)) for _ in range(4)))


def deformed(net):
    """torchvision's deform_conv2d as DeformConv of opset 19."""
    offsets = net.conv("x", 3, 18, 3)
    weight = net.constant(net.floats(4, 3, 3, 3))
    return net.op("DeformConv", "x", weight, offsets, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def named_with_slashes_and_colons(net):
    weight = net.constant(net.floats(4, 3, 3, 3), "a/b:0/w")
    return net.op("Conv", "x", weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1], output="model/conv/Conv2D:0")


def clipped_at_infinity(net):
    ends = net.constant(np.float32(0)), net.constant(np.float32(np.inf))
    return net.op("Clip", padded(net, "x"), *ends)


@pytest.mark.parametrize(
    ("build", "opset", "tiles"),
    [
        (pooled_as_opset_13_pads, 13, 4),
        (flattened_by_its_shape, 11, 4),
        (softmax_from_its_axis_on, 11, 4),
        (upsampled_as_opset_9_does, 9, 4),
        (deformed, 19, 1),
        (sampled_by_a_constant_grid, 20, None),
        (cropped_by_a_resize_that_names_the_batch, 20, None),
        (padded_by_nothing_and_summed_over_a_stack, 20, 4),
        (unpooled, 20, 4),
        (unpooled_without_an_activation, 20, 4),
        (recurrent_over_rows, 20, None),
        (named_with_slashes_and_colons, 20, 4),
        (clipped_at_infinity, 20, 4),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_graphs_that_other_tools_read_wrongly(build, opset, tiles, tmp_path):
    net = Net(3, 12, 10, opset=opset)
    output = build(net)
    flat = build is flattened_by_its_shape
    dims = ("N", "K") if flat else ("N", "T", "K") if build is recurrent_over_rows else ("N", "C", "H", "W")
    path = net.save(tmp_path, output, dims=dims)
    plan = serfer.split(path, out=tmp_path / "plan", grids=["2x2", "1"] if flat else (2, 2) if tiles == 4 else "auto")
    assert tiles in {None, len(plan.stages[0].tiles)}


@pytest.mark.parametrize(("value", "outputs"), [("output", 1), ("input", 2)])
def test_an_output_that_is_listed_twice_or_is_the_input(value, outputs, tmp_path):
    net = Net(3, 12, 10)
    model = net.model(padded(net, "x"), dims=("N", 4, 12, 10))
    model.graph.output.append(getattr(model.graph, value)[0])
    onnx.save(model, tmp_path / "net.onnx")
    plan = serfer.split(tmp_path / "net.onnx", out=tmp_path / "plan", grids=(2, 2))
    assert len(plan.output_tensors) == outputs
    assert len(plan.stages[0].tiles) == 4


@pytest.mark.parametrize("fault", [None, "elsewhere"])
def test_external_data_in_several_files_are_read_or_named(fault, tmp_path):
    """onnxruntime 11848: external data, each tensor in a file of its own."""
    net, home = Net(3, 12, 10), tmp_path / "home"
    home.mkdir()
    model, path = net.model(padded(net, padded(net, "x", 3, 16), 16), dims=("N", "C", "H", "W")), home / "net.onnx"
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
    model = net.model(net.conv("x", 3, many, 1), dims=("N", "C", "H", "W"))
    model.graph.initializer.append(weights)
    last = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Conv", [last, "w"], ["y"], pads=[1] * 4))
    model.graph.output[0].name = "y"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"a stage needs about 7,\d+ MB of memory, .* allows 3,008"):
        serfer.split(tmp_path / "net.onnx", out=tmp_path / "plan")


@pytest.mark.slow
def test_an_instance_norm_in_float16_whose_variance_overflows(tmp_path):
    """onnxruntime 10079, mlx 4228: the variance of values of 512 is beyond float16's range."""
    net = Net(3, 12, 10)
    x = net.op("Mul", padded(net, "x"), 512.0)
    x = net.op("InstanceNormalization", x, np.ones(4, np.float32), np.zeros(4, np.float32))
    plan = split(net, padded(net, x, 4), tmp_path, precision="fp16")
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
        split(net, padded(net, "x"), tmp_path, dims=("N", "C", 12, 10), size=(24, 10))
    net = Net(3, 8, 16)
    net.size = (3, 4, 8, 16)
    volume = net.op("Conv", "x", net.floats(4, 3, 3, 3, 3), kernel_shape=[3, 3, 3], pads=[1] * 6)
    with pytest.raises(ModelError, match="takes tensors of 5 axes, not images"):
        split(net, volume, tmp_path, dims=("N", "C", "D", "H", "W"))
