"""Split equals unsplit for whatever small network comes along."""

import numpy as np
import pytest

from serfer.core.errors import ModelError
from splitter.cuts import cut_points
from splitter.global_pooling import with_tile_pools
from splitter.ingest import from_onnx
from tests.splitter.models import Net, worst_error

EXAMPLES = 160
SMALLEST = 3


class Writer(Net):
    """A network of random operators; `shape` is the current map's."""

    def __init__(self, seed):
        super().__init__(1, 1, 1, seed)
        self.size = (self.pick(1, 4), self.pick(9, 27), self.pick(9, 27))
        self.name, self.shape = "x", self.size

    def pick(self, low, high):
        return int(self.random.integers(low, high + 1))

    def window(self, most):
        """Return attributes of a window that leaves at least SMALLEST rows and columns, and the new size."""
        while True:
            kernel, pads = [self.pick(1, most), self.pick(1, most)], [self.pick(0, 2) for _ in range(4)]
            strides, dilations = [self.pick(1, 2), self.pick(1, 2)], [self.pick(1, 2), self.pick(1, 2)]
            reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
            free = [self.shape[1 + axis] + pads[axis] + pads[axis + 2] - reach[axis] for axis in (0, 1)]
            size = [room // stride + 1 for room, stride in zip(free, strides, strict=True)]
            if min(size) >= SMALLEST and min(free) >= 0:
                return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}, size

    def step_conv(self):
        window, size = self.window(4)
        groups = self.shape[0] if self.pick(0, 2) == 0 else 1
        channels = self.pick(1, 2) * groups if groups > 1 else self.pick(1, 5)
        self.name = self.conv(self.name, self.shape[0], channels, window.pop("kernel_shape"), groups, **window)
        self.shape = (channels, *size)

    def step_pool(self):
        window, _ = self.window(3)
        kernel = window["kernel_shape"]
        window["pads"] = [min(pad, k - 1) for pad, k in zip(window["pads"], kernel * 2, strict=True)]
        kind = ("MaxPool", "AveragePool")[self.pick(0, 1)]
        if kind == "AveragePool":
            window["count_include_pad"] = self.pick(0, 1)
        window["ceil_mode"] = int(self.pick(0, 1) and not self.ends_past_the_map(window))
        self.name = self.op(kind, self.name, **window)
        self.measure()

    def ends_past_the_map(self, window):
        """Say whether ceil mode would add a window that starts past the map: such pools are refused."""
        for axis, (k, s, d) in enumerate(
            zip(*(window[n] for n in ("kernel_shape", "strides", "dilations")), strict=True)
        ):
            before, after = window["pads"][axis], window["pads"][axis + 2]
            last = -(-(self.shape[1 + axis] + before + after - d * (k - 1) - 1) // s) * s
            if last - before >= self.shape[1 + axis]:
                return True
        return False

    def step_activation(self):
        kind = ("Relu", "Sigmoid", "HardSwish", "LeakyRelu")[self.pick(0, 3)]
        self.name = self.op(kind, self.name)

    def step_normalise(self):
        scale, bias, mean = (self.constant(self.floats(self.shape[0])) for _ in range(3))
        variance = self.constant(np.abs(self.floats(self.shape[0])) + 0.5)
        self.name = self.op("BatchNormalization", self.name, scale, bias, mean, variance)

    def step_residual(self):
        channels = self.shape[0]
        inner = self.conv(self.name, channels, channels, [3, 3], pads=[1, 1, 1, 1])
        inner = self.op("Relu", inner)
        inner = self.conv(inner, channels, channels, [1, 3], pads=[0, 1, 0, 1])
        self.name = self.op("Add", inner, self.name)

    def step_branches(self):
        channels = self.shape[0]
        one = self.conv(self.name, channels, 2, [5, 1], pads=[2, 0, 2, 0])
        two = self.op("MaxPool", self.name, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        self.name = self.op("Concat", one, two, self.name, axis=1)
        self.shape = (2 * channels + 2, *self.shape[1:])

    def step_pad(self):
        amounts = [0, 0, self.pick(0, 3), self.pick(0, 3), 0, 0, self.pick(0, 3), self.pick(0, 3)]
        value = self.constant(np.float32(self.pick(-1, 1)))
        self.name = self.op("Pad", self.name, self.constant(np.array(amounts)), value)
        self.measure()

    def measure(self):
        self.shape = from_onnx(self.copy().model("flat"), *self.size[1:]).shape(self.name)
        self.shape = (self.shape.channels, self.shape.height, self.shape.width)

    def copy(self):
        other = Net(*self.size)
        other.nodes, other.weights = list(self.nodes), list(self.weights)
        other.op("Flatten", self.name, output="flat", axis=1)
        return other

    def random_model(self):
        steps = [getattr(self, name) for name in sorted(vars(Writer)) if name.startswith("step_")]
        for _ in range(self.pick(3, 7)):
            steps[self.pick(0, len(steps) - 1)]()
        if self.pick(0, 1):
            self.name = self.op("GlobalAveragePool", self.name)
            return self.model(self.linear(self.flat(self.name), self.shape[0], 5))
        return self.model(self.flat(self.name))


@pytest.mark.parametrize("part", range(8))
def test_any_network_equals_itself_split(part, tmp_path):
    for seed in range(part, EXAMPLES, 8):
        writer = Writer(seed)
        model = writer.random_model()
        grid = (writer.pick(1, 3), writer.pick(1, 3))
        most = len(cut_points(with_tile_pools(from_onnx(model, *writer.size[1:])))) - 1
        stages = min(writer.pick(1, 4), most)
        batch = writer.batch_of(2)
        error = worst_error(model, batch, tmp_path / str(seed), grid, stages)
        assert error <= 1e-5, f"seed {seed}: grid {grid}, {stages} stages, error {error}"


def test_a_map_too_small_for_the_grid_is_refused_or_left_in_one_tile(tmp_path):
    net = Net(1, 2, 9)
    model = net.model(net.flat(net.conv("x", 1, 1, [1, 3])))
    assert worst_error(model, net.batch_of(2), tmp_path / "one", (3, 3)) <= 1e-6
    with pytest.raises(ModelError):
        worst_error(model, net.batch_of(2), tmp_path / "two", [(3, 3), (1, 1)])
