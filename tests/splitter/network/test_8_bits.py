"""Networks in 8 bits run as they are; those with weights alone in 8 bits are split."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, unsplit

SIZE = (16, 18)
STEP = 0.05


class Quantised(Net):
    """Builds networks as ONNX Runtime's quantiser writes them: every operator between a pair and the next."""

    def pair(self, x, scale=STEP, zero=0, kind=np.int8):
        scale, zero = self.constant(np.float32(scale)), self.constant(kind(zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, scale, zero), scale, zero)

    def weight(self, *shape, axis=0, per_channel=True):
        value = self.constant(self.random.integers(-127, 128, shape).astype(np.int8))
        count = shape[axis]
        if not per_channel:
            return self.op("DequantizeLinear", value, self.constant(np.float32(0.002)), self.constant(np.int8(3)))
        scale = self.constant(self.random.uniform(0.0005, 0.003, count).astype(np.float32))
        return self.op("DequantizeLinear", value, scale, self.constant(np.zeros(count, np.int8)), axis=axis)

    def bias(self, count):
        value = self.constant(self.random.integers(-3000, 3000, count).astype(np.int32))
        return self.op("DequantizeLinear", value, self.constant(np.float32(1e-4)))


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
    path = tmp_path / "net.onnx"
    onnx.save(net.model(output), path)
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
    model = net.model(net.flat(net.op("GlobalAveragePool", x)))
    onnx.save(model, tmp_path / "net.onnx")
    plan = split(tmp_path / "net.onnx", out=tmp_path / "plan", grids=["2x2", "1"])
    assert plan.tasks > 1
    batch = net.batch_of(2)
    assert relative_error(run_tiles(plan, tmp_path / "plan", batch), unsplit(model, batch)) <= 1e-4


def test_quantising_activations_is_named():
    net = Quantised(3, *SIZE)
    with pytest.raises(ModelError, match=r"\(QuantizeLinear\) cannot be split: it rounds to 8 bits"):
        from_onnx(net.model(net.flat(net.pair("x"))), *SIZE)
    net.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], name="dynamic"))
    dynamic = net.op("DequantizeLinear", "q", "scale", "zero")
    with pytest.raises(ModelError, match=r"\(DynamicQuantizeLinear\).*export the float32 model"):
        from_onnx(net.model(net.flat(dynamic)), *SIZE)
