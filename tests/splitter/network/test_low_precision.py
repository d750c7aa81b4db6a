"""Networks in 8 bits run as they are, those with weights alone in 8 bits and those in fp16 are split."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.network.ingest import ROUNDING
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir import check
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.split import split
from tests.splitter.models import Net, check_every_answer, plan_error, saved, unsplit

SIZE = (16, 18)
STEP = 0.05


class Quantised(Net):
    """Builds networks as ONNX Runtime's quantiser writes them: every operator between a pair and the next."""

    def pair(self, x, scale=STEP, zero=0, kind=np.int8):
        step = scale, kind(zero)
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *step), *step)

    def weight(self, *shape, axis=0, per_channel=True):
        value, count = self.random.integers(-127, 128, shape, np.int8), shape[axis]
        if not per_channel:
            return self.op("DequantizeLinear", value, 0.002, np.int8(3))
        scale = self.random.uniform(0.0005, 0.003, count)
        return self.op("DequantizeLinear", value, scale, np.zeros(count, np.int8), axis=axis)

    def bias(self, count):
        return self.op("DequantizeLinear", self.random.integers(-3000, 3000, count, np.int32), 0.0001)


def network(kind=np.int8, zero=0, *, per_channel=True):
    """Convolutions, a sum, means and a matrix; by their zero points, values are clipped on one side."""
    net = Quantised(3, *SIZE)
    x = net.pair("x", zero=zero, kind=kind)
    weights = net.weight(12, 3, 3, 3, per_channel=per_channel), net.bias(12)
    left = net.pair(net.op("Relu", net.op("Conv", x, *weights, pads=[1, 1, 1, 1])), zero=zero, kind=kind)
    right = net.op("Conv", left, net.weight(12, 1, 3, 3, per_channel=per_channel), group=12, pads=[1, 1, 1, 1])
    x = net.pair(net.op("Add", left, net.pair(right, zero=zero, kind=kind)), 2 * STEP, zero, kind)
    x = net.pair(net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), STEP, zero, kind)
    x = net.pair(net.op("AveragePool", x, kernel_shape=[2, 2], pads=[1, 0, 0, 1]), STEP, zero, kind)
    x = net.pair(net.op("GlobalAveragePool", x), STEP / 4, zero, kind)
    x = net.pair(net.op("Gemm", net.flat(x), net.weight(12, 5, axis=1, per_channel=per_channel), net.bias(5)))
    return net, x


FORMS = [(np.int8, 0, True), (np.int8, -128, True), (np.uint8, 0, False), (np.uint8, 128, True)]


@pytest.mark.exact
@pytest.mark.exact
@pytest.mark.parametrize(("kind", "zero", "per_channel"), FORMS)
def test_quantised_network_runs_as_it_is_in_one_task(kind, zero, per_channel, tmp_path):
    net, output = network(kind, zero, per_channel=per_channel)
    path = net.save(tmp_path, output)
    plan = split(path, out=tmp_path / "plan")
    assert (plan.tasks, "(QuantizeLinear)" in plan.why) == (1, True)
    batch = net.batch_of(6)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    own = [session.run(None, {session.get_inputs()[0].name: image[None]})[0] for image in batch]
    assert np.array_equal(run_tiles(plan, tmp_path / "plan", batch), np.concatenate(own))


@pytest.mark.exact
def test_quantised_weights_alone_are_split(tmp_path):
    net = Quantised(3, *SIZE)
    x = net.op("Relu", net.op("Conv", "x", net.weight(4, 3, 3, 3), net.bias(4), pads=[1, 1, 1, 1]))
    output = net.flat(net.op("GlobalAveragePool", x))
    plan = split(net.save(tmp_path, output), out=tmp_path / "plan", grids=["2x2", "1"])
    assert plan.tasks > 1
    assert plan_error(net, output, plan, tmp_path / "plan") <= 1e-4


def test_quantising_activations_is_named():
    net = Quantised(3, *SIZE)
    with pytest.raises(ModelError, match=r"\(QuantizeLinear\) cannot be split: it rounds to 8 bits"):
        net.graph(net.flat(net.pair("x")))
    dynamic = net.op("DequantizeLinear", *net.op("DynamicQuantizeLinear", "x", outputs=3))
    with pytest.raises(ModelError, match=r"\(DynamicQuantizeLinear\).*export the float32 model"):
        net.graph(net.flat(dynamic))


EXACT = 1e-6


def halves(cast):
    """A network that needs constants of its own in tiles: means of fewer positions, shares of a global mean."""
    net = Net(3, 16, 16)
    x = net.op("Cast", "x", to=TensorProto.FLOAT16) if cast else "x"
    x = net.op("Relu", net.conv(x, 3, 12, 3))
    x = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.op("Clip", net.conv(x, 12, 24, [3, 3]), -4.0, 4.0)
    x = net.linear(net.flat(net.op("GlobalAveragePool", x)), 24, 5)
    return net, net.op("Cast", x, to=TensorProto.FLOAT) if cast else x


def in_half(net, output, cast, dims=(1, 5)):
    """Write a network with fp16 constants, and with an fp16 input and output where it casts neither."""
    net.constants = [
        numpy_helper.from_array(value.astype(np.float16), tensor.name) if value.dtype == np.float32 else tensor
        for tensor in net.constants
        for value in [numpy_helper.to_array(tensor)]
    ]
    kind = TensorProto.FLOAT if cast else TensorProto.FLOAT16
    given, made = (
        helper.make_tensor_value_info("x", kind, [1, *net.size]),
        helper.make_tensor_value_info(output, kind, dims),
    )
    body = helper.make_graph(net.nodes, "net", [given], [made], net.constants)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def original(model, batch):
    kind = np.float16 if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32
    return np.concatenate([unsplit(model, image[None].astype(kind)) for image in batch]).astype(np.float32)


@pytest.mark.parametrize("cast", [False, True], ids=["fp16 images", "float32 images"])
def test_a_network_in_fp16_is_split(cast, tmp_path):
    net, output = halves(cast)
    model = in_half(net, output, cast)
    plan = split(saved(tmp_path, model), out=tmp_path / "plan", grids=["2x2", "2x2", "1"])
    batch = net.batch_of(2)
    whole = check.whole_runner(tmp_path / "plan" / plan.unsplit.path)(batch)
    check_every_answer(None, plan, tmp_path / "plan", batch, EXACT, expected=whole)
    assert 0 < relative_error(whole, original(model, batch)) <= ROUNDING
    stored = sum(function.weights.bytes for stage in plan.stages for function in stage.functions)
    small = 12 * 3 * 9 * 4 + 48  # less than 1 KiB in fp16: kept in float32, to the next multiple of 64 bytes
    assert stored == 24 * 12 * 9 * 2 + small


def test_operators_in_any_order_are_read_and_an_undefined_tensor_is_refused(tmp_path):
    """ONNX Runtime's own fp16 converter appends the casts of inputs."""
    net, output = halves(cast=True)
    net.nodes.reverse()
    source, example = load(saved(tmp_path, in_half(net, output, cast=True)), None)
    assert source.run(example).shape == (1, 5)
    net.nodes.reverse()
    net.nodes[1].input[0] = "nothing"
    with pytest.raises(ModelError, match="nothing"):
        load(saved(tmp_path, in_half(net, output, cast=True)), None)


def test_a_mean_in_float16_of_more_values_than_its_range(tmp_path):
    """onnxconverter-common 323: a ReduceMean of 65,536 float16 values is NaN."""
    net = Net(3, 256, 256)
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    x = net.op("Relu", net.conv(x, 4, 4, 3))
    mean = net.op("ReduceMean", x, [2, 3])
    path = saved(tmp_path, in_half(net, mean, cast=False, dims=(1, 4, 1, 1)))
    plan = split(path, out=tmp_path / "plan", grids=["2x2", "1"])
    assert len(plan.stages[0].tiles) == 4
