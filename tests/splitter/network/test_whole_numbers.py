"""Networks in 8 bits (QuantizeLinear, DequantizeLinear): tiles equal the whole bit for bit."""

import numpy as np
import onnx
import pytest

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.network.whole_numbers import ROUNDING
from serfer.splitter.plan_dir.check import run_tiles, whole_runner
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, through_the_store, unsplit

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
@pytest.mark.parametrize(("kind", "zero", "per_channel"), FORMS)
def test_tiles_equal_the_whole_bit_for_bit(kind, zero, per_channel, tmp_path):
    net, output = network(kind, zero, per_channel=per_channel)
    model = net.model(output)
    onnx.save(model, tmp_path / "net.onnx")
    plan = split(tmp_path / "net.onnx", out=tmp_path / "plan", grids=["2x2", "3x2", "1"])
    batch = net.batch_of(6)
    whole = whole_runner(tmp_path / "plan" / plan.unsplit.path)(batch)
    assert np.array_equal(run_tiles(plan, tmp_path / "plan", batch), whole)
    assert np.ptp(whole) > 10 * STEP
    assert relative_error(whole, unsplit(model, batch)) <= ROUNDING
    assert np.abs(whole - unsplit(model, batch)).max() <= 1.01 * STEP, "at most one step"


@pytest.mark.exact
def test_tiles_equal_the_whole_through_the_store(tmp_path):
    net, output = network()
    onnx.save(net.model(output), tmp_path / "net.onnx")
    plan = split(tmp_path / "net.onnx", out=tmp_path / "plan", grids=["2x2", "1"])
    batch = net.batch_of(2)
    whole = whole_runner(tmp_path / "plan" / plan.unsplit.path)(batch)
    assert np.array_equal(through_the_store(tmp_path / "plan", batch)[0], whole)


def refusal(net, x):
    with pytest.raises(ModelError) as caught:
        from_onnx(net.model(net.flat(x)), *SIZE)
    return str(caught.value)


def test_rounding_of_float32_sums_is_refused():
    net = Quantised(3, *SIZE)
    net.nodes.clear()
    x = net.pair(net.op("Relu", net.conv("x", 3, 4, [3, 3])))
    message = refusal(net, x)
    assert "(QuantizeLinear)" in message
    assert "last bits" in message
    assert "Relu" in message


def test_a_pair_with_different_zero_points_is_refused():
    net = Quantised(3, *SIZE)
    q = net.op("QuantizeLinear", "x", net.constant(np.float32(STEP)), net.constant(np.int8(3)))
    x = net.op("DequantizeLinear", q, net.constant(np.float32(STEP)), net.constant(np.int8(4)))
    assert "same zero point" in refusal(net, x)


def test_a_quantiser_for_each_channel_is_refused():
    net = Quantised(3, *SIZE)
    scale, zero = net.constant(np.full(3, STEP, np.float32)), net.constant(np.zeros(3, np.int8))
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", "x", scale, zero), scale, zero)
    assert "one constant number each" in refusal(net, x)


def test_a_matrix_that_is_not_quantised_is_refused():
    net = Quantised(3, *SIZE)
    x = net.pair(net.op("GlobalAveragePool", net.pair("x")))
    x = net.pair(net.linear(net.flat(x), 3, 5))
    assert "Gemm" in refusal(net, x)


def test_an_operator_that_computes_in_8_bits_itself_is_named():
    net = Quantised(3, *SIZE)
    scale, zero = net.constant(np.float32(STEP)), net.constant(np.int8(0))
    q = net.op("QuantizeLinear", "x", scale, zero)
    weight = net.constant(net.random.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8))
    y = net.op("QLinearConv", q, scale, zero, weight, scale, zero, scale, zero)
    message = refusal(net, net.op("DequantizeLinear", y, scale, zero))
    assert "(QLinearConv)" in message
    assert "QDQ" in message


def test_an_operator_that_quantises_as_it_runs_is_named():
    net = Quantised(3, *SIZE)
    net.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], name="dynamic"))
    message = refusal(net, net.op("DequantizeLinear", "q", "scale", "zero"))
    assert "(DynamicQuantizeLinear)" in message
    assert "QDQ" in message
