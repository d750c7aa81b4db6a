"""Networks in fp16 are split as float32 networks with fp16 weights, within a stated bound."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.network.ingest import ROUNDING
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir import check
from serfer.splitter.split import split
from tests.splitter.models import Net, check_every_answer, unsplit

EXACT = 1e-6


def network(cast):
    """A network that needs constants of its own in tiles: means of fewer positions, shares of a global mean."""
    net = Net(3, 16, 16)
    x = net.op("Cast", "x", to=TensorProto.FLOAT16) if cast else "x"
    x = net.op("Relu", net.conv(x, 3, 12, [3, 3], pads=[1, 1, 1, 1]))
    x = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.op("Clip", net.conv(x, 12, 24, [3, 3]), net.constant(np.float32(-4)), net.constant(np.float32(4)))
    x = net.linear(net.flat(net.op("GlobalAveragePool", x)), 24, 5)
    return net, net.op("Cast", x, to=TensorProto.FLOAT) if cast else x


def in_half(net, output, cast):
    """Write a network with fp16 constants, and with an fp16 input and output where it casts neither."""
    net.weights = [
        numpy_helper.from_array(value.astype(np.float16), tensor.name) if value.dtype == np.float32 else tensor
        for tensor in net.weights
        for value in [numpy_helper.to_array(tensor)]
    ]
    kind = TensorProto.FLOAT if cast else TensorProto.FLOAT16
    body = helper.make_graph(
        net.nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, [1, *net.size])],
        [helper.make_tensor_value_info(output, kind, [1, 5])],
        net.weights,
    )
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def original(model, batch):
    """Run an fp16 model as ONNX Runtime has it, image by image."""
    kind = np.float16 if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32
    return np.concatenate([unsplit(model, image[None].astype(kind)) for image in batch]).astype(np.float32)


@pytest.mark.parametrize("cast", [False, True], ids=["fp16 images", "float32 images"])
def test_a_network_in_fp16_is_split(cast, tmp_path):
    net, output = network(cast)
    model = in_half(net, output, cast)
    onnx.save(model, tmp_path / "net.onnx")
    plan = split(tmp_path / "net.onnx", out=tmp_path / "plan", grids=["2x2", "2x2", "1"])
    batch = net.batch_of(2)
    whole = check.whole_runner(tmp_path / "plan" / plan.unsplit.path)(batch)
    check_every_answer(None, plan, tmp_path / "plan", batch, EXACT, expected=whole)
    assert 0 < relative_error(whole, original(model, batch)) <= ROUNDING
    stored = sum(function.weights.bytes for stage in plan.stages for function in stage.functions)
    small = 12 * 3 * 9 * 4 + 48  # less than 1 KiB in fp16: kept in float32, to the next multiple of 64 bytes
    assert stored == 24 * 12 * 9 * 2 + small


def test_operators_in_any_order_are_read_and_an_undefined_tensor_is_refused(tmp_path):
    """ONNX Runtime's own fp16 converter appends the casts of inputs."""
    net, output = network(cast=True)
    net.nodes.reverse()
    onnx.save(in_half(net, output, cast=True), tmp_path / "net.onnx")
    source, example = load(tmp_path / "net.onnx", None)
    assert source.run(example).shape == (1, 5)
    net.nodes.reverse()
    net.nodes[1].input[0] = "nothing"
    onnx.save(in_half(net, output, cast=True), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="nothing"):
        load(tmp_path / "net.onnx", None)
