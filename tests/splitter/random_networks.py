"""Hypothesis strategies for networks, cuts, grids and boundaries of plans."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.splitter.models import Net

SMALLEST = 3
LARGEST = 40
CLASSES = 5
PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
UNARY = ("Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Tanh", "Gelu", "Mish", "Softplus")


class Drawn(Net):
    """A network that grows operator by operator; `name` and `shape` are the current map's."""

    def __init__(self, draw, largest=21):
        self.draw = draw
        super().__init__(self.number(1, 4), self.number(9, largest), self.number(9, largest), self.number(0, 999))
        self.name, self.shape = "x", self.size

    def number(self, low, high):
        return self.draw(st.integers(low, high))

    def flip(self):
        return self.draw(st.booleans())

    def then(self, kind, *inputs, shape=None, **attributes):
        """Append an operator on the current map (and other inputs); its output becomes the current map."""
        self.name = self.op(kind, self.name, *inputs, **attributes)
        self.shape = tuple(shape or self.shape)

    def window(self, most, *, pooling=False):
        """Return the attributes of a window that leaves at least SMALLEST rows and columns, and the new size."""
        kernel, pads = [self.number(1, most) for _ in "hw"], [self.number(0, 2) for _ in "hwhw"]
        strides, dilations = [self.number(1, 3) for _ in "hw"], [self.number(1, 2) for _ in "hw"]
        if pooling:  # a runtime wants pads smaller than the kernel
            pads = [min(pad, size - 1) for pad, size in zip(pads, kernel * 2, strict=True)]
        for axis in (0, 1):
            room = self.shape[1 + axis] + pads[axis] + pads[axis + 2]
            if dilations[axis] * (kernel[axis] - 1) + 1 > room - SMALLEST:
                kernel[axis], strides[axis] = 1, 1
                if pooling:
                    pads[axis] = pads[axis + 2] = 0
                    room = self.shape[1 + axis]
            reach = dilations[axis] * (kernel[axis] - 1) + 1
            strides[axis] = max(1, min(strides[axis], (room - reach) // (SMALLEST - 1)))
        return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}

    def after(self, window, ceil=0):
        """Return the size after a window, None where ceil mode starts one past the map: there runtimes differ."""
        sizes = []
        for axis in (0, 1):
            kernel, stride, dilation, before = (
                window[n][axis] for n in ("kernel_shape", "strides", "dilations", "pads")
            )
            room = self.shape[1 + axis] + before + window["pads"][axis + 2] - dilation * (kernel - 1) - 1
            size = (-(-room // stride) if ceil else room // stride) + 1
            if ceil and (size - 1) * stride >= self.shape[1 + axis] + before:
                return None
            sizes.append(size)
        return sizes

    def step_conv(self):
        window = self.window(4)
        groups = self.shape[0] if self.flip() else 1
        channels = groups * self.number(1, 2) if groups > 1 else self.number(1, 6)
        size = self.after(window)
        self.name = self.conv(self.name, self.shape[0], channels, window.pop("kernel_shape"), groups, **window)
        self.shape = (channels, *size)

    def step_pool(self):
        window = self.window(3, pooling=True)
        ceil, kind = self.number(0, 1), self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        size = self.after(window, ceil)
        if size is None:
            ceil, size = 0, self.after(window)
        more = {"count_include_pad": self.number(0, 1)} if kind == "AveragePool" else {}
        self.then(kind, shape=(self.shape[0], *size), ceil_mode=ceil, **window, **more)

    def step_activation(self):
        kind = self.draw(st.sampled_from([*UNARY, "silu", "where", "clip"]))
        if kind == "silu":
            self.then("Mul", self.op("Sigmoid", self.name))
        elif kind == "where":
            above = self.op("Greater", self.name, 0.0)
            self.name = self.op("Where", above, self.name, self.op("Mul", self.name, 0.3))
        elif kind == "clip":
            self.then("Clip", -1.0, 1.5)
        else:
            self.then(kind)

    def step_batch_norm(self):
        channels = self.shape[0]
        self.then("BatchNormalization", *self.floats(3, channels), np.abs(self.floats(channels)) + 0.5)

    def step_residual(self):
        before, channels = self.name, self.shape[0]
        inner = self.op("Relu", self.conv(before, channels, channels, 3))
        inner = self.conv(inner, channels, channels, [1, 3], pads=[0, 1, 0, 1])
        self.name = self.op("Add", inner, before)

    def step_branches(self):
        channels, before = self.shape[0], self.name
        one = self.conv(before, channels, 2, [5, 1], pads=[2, 0, 2, 0])
        two = self.op("MaxPool", before, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        self.name, self.shape = self.op("Concat", one, two, before, axis=1), (2 * channels + 2, *self.shape[1:])
        self.thin()

    def thin(self):
        if self.shape[0] > 8:  # examples stay small
            self.name, self.shape = self.conv(self.name, self.shape[0], 4, 1), (4, *self.shape[1:])

    def step_pad(self):
        mode = self.draw(st.sampled_from(["constant", "reflect", "edge"]))
        top, left, bottom, right = (self.number(0, 2) for _ in "tlbr")
        channels = self.number(0, 1) if mode == "constant" else 0
        amounts = [0, channels, top, left, 0, 0, bottom, right]
        shape = (self.shape[0] + channels, self.shape[1] + top + bottom, self.shape[2] + left + right)
        self.then("Pad", amounts, *([0.5] if mode == "constant" else []), shape=shape, mode=mode)

    def step_slice(self):
        starts, stops, steps, shape = [], [], [], []
        for axis, size in enumerate(self.shape):
            step = self.number(1, 2) if size >= 2 * SMALLEST + 2 else 1
            start = self.number(0, max(0, min(2, size - (1 if axis == 0 else SMALLEST * step))))
            stop = size - self.number(0, 1) if size - start > (SMALLEST + 1) * step else size
            starts.append(start), stops.append(stop), steps.append(step)
            shape.append(-(-(stop - start) // step))
        self.then("Slice", starts, stops, [1, 2, 3], steps, shape=shape)

    def step_split(self):
        if self.shape[0] > 1:
            first = self.number(1, self.shape[0] - 1)
            left, right = self.op("Split", self.name, [first, self.shape[0] - first], outputs=2, axis=1)
            self.name = self.op("Concat", right, self.op("Relu", left), axis=1)

    def step_shuffle(self):
        channels, rows, cols = self.shape
        if channels % 2 == 0 and self.flip():
            self.then("Reshape", [0, 2, channels // 2, rows, cols])
            self.then("Transpose", perm=[0, 2, 1, 3, 4])
            self.then("Reshape", [0, channels, rows, cols])
        else:
            self.then("Gather", self.random.permutation(channels), axis=1)

    def step_squeeze_and_excite(self):
        channels, before = self.shape[0], self.name
        gate = self.op(self.draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"])), before)
        if self.flip():
            gate = self.conv(self.op("Relu", self.conv(gate, channels, 2, 1)), 2, channels, 1)
        else:
            gate = self.linear(self.op("Relu", self.linear(self.flat(gate), channels, 3)), 3, channels)
            gate = self.op("Reshape", gate, [0, channels, 1, 1])
        self.name = self.op("Mul", before, self.op("Sigmoid", gate))

    def step_channels_last(self):
        channels, before = self.shape[0], self.name
        self.then("Transpose", perm=[0, 2, 3, 1])
        self.then("LayerNormalization", self.floats(channels), self.floats(channels), epsilon=0.1)
        self.then("MatMul", self.floats(channels, channels))
        self.then("Transpose", perm=[0, 3, 1, 2])
        self.name = self.op("Add", self.name, before)

    def step_spatial_gate(self):
        before = self.name
        mean, most = (self.op(kind, before, [1]) for kind in ("ReduceMean", "ReduceMax"))
        gate = self.conv(self.op("Concat", mean, most, axis=1), 2, 1, 3)
        self.name = self.op("Mul", before, self.op("Sigmoid", gate))

    def step_resample(self):
        _, rows, cols = self.shape
        if self.flip() and 2 * max(rows, cols) <= LARGEST:
            self.resample(2 * rows, 2 * cols)
        else:
            self.resample(*(self.number(SMALLEST, LARGEST) for _ in "hw"))

    def resample(self, rows, cols):
        """Append what makes a map of this size: a Resize, a transposed convolution, or pixels made of channels."""
        grows = rows >= self.shape[1] and cols >= self.shape[2]
        how = self.draw(st.sampled_from(["nearest", "linear", "cubic", "transposed", "pixels"]))
        if how == "transposed" and grows:
            self.transposed(rows, cols)
            return
        if how == "pixels" and self.shape[0] % 4 == 0:
            shape = (self.shape[0] // 4, 2 * self.shape[1], 2 * self.shape[2])
            self.then("DepthToSpace", shape=shape, blocksize=2, mode=self.draw(st.sampled_from(["CRD", "DCR"])))
        if self.shape[1:] != (rows, cols):
            mode, where = how if how in {"nearest", "cubic"} else "linear", self.draw(st.sampled_from(PLACES))
            attributes = {"mode": mode, "coordinate_transformation_mode": where, "axes": [2, 3]}
            self.then("Resize", "", "", [rows, cols], shape=(self.shape[0], rows, cols), **attributes)

    def transposed(self, rows, cols):
        channels = self.shape[0]
        strides = [-(-size // before) for size, before in zip((rows, cols), self.shape[1:], strict=True)]
        kernel, dilations = [self.number(1, 4) for _ in "hw"], [self.number(1, 2) for _ in "hw"]
        group = channels if self.flip() else 1
        weight = self.floats(channels, 4 // group or 1, *kernel) / np.sqrt(channels)
        window = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "group": group}
        shape = (group * (4 // group or 1), rows, cols)
        pads = {"auto_pad": self.draw(st.sampled_from(["NOTSET", "SAME_UPPER"])), "output_shape": [rows, cols]}
        self.then("ConvTranspose", weight, shape=shape, **window, **pads)

    def step_constant_map(self):
        shape = self.draw(st.sampled_from([self.shape, (1, *self.shape[1:]), self.shape[1:], (self.shape[0], 1, 1)]))
        self.then(self.draw(st.sampled_from(["Add", "Mul"])), self.floats(*shape))

    def step_adaptive_pool(self):
        rows, cols = (self.number(SMALLEST, size) for size in self.shape[1:])
        left, right = self.floats(rows, self.shape[1]), self.floats(self.shape[2], cols)
        for matrix in (left, right.T):
            for index, row in enumerate(matrix):  # a band, as of means over neighbouring positions
                start = index * matrix.shape[1] // len(matrix)
                row[:start] = row[start + 2 :] = 0
        wide = self.op("MatMul", self.name, right)
        self.name, self.shape = self.op("MatMul", left, wide), (self.shape[0], rows, cols)

    def step_in_one_piece(self):
        if self.number(0, 2) == 0:  # a barrier for every grid: not too often
            self.then("CumSum", 2)
            self.then("Mul", 0.1)

    def step_instance_norm(self):
        channels = self.shape[0]
        if self.flip():
            self.then("InstanceNormalization", *self.floats(2, channels), epsilon=0.1)
        else:
            groups, shape = self.draw(st.sampled_from([n for n in (1, 2, channels) if channels % n == 0])), self.shape
            self.then("Reshape", [0, groups, -1])
            self.then("InstanceNormalization", np.ones(groups), np.zeros(groups), epsilon=0.1)
            self.then("Reshape", [0, *shape], shape=shape)

    def merge(self, skip, shape):
        """Join an earlier map of the same size to the current one: as more channels, or added."""
        if self.flip():
            self.name, self.shape = self.op("Concat", skip, self.name, axis=1), (shape[0] + self.shape[0], *shape[1:])
        else:
            self.name = self.op("Add", self.conv(self.name, self.shape[0], shape[0], 1), skip)
            self.shape = shape
        self.thin()

    def scores(self):
        """Append scores of CLASSES, perhaps as probabilities, and the best class; return the output's name.

        It has the axes (N, CLASSES + 1, H, W), the class last.
        """
        self.name, self.shape = self.conv(self.name, self.shape[0], CLASSES, 1), (CLASSES, *self.shape[1:])
        kind = self.draw(st.sampled_from(["Softmax", "LogSoftmax", "Identity"]))
        scores = self.name if kind == "Identity" else self.op(kind, self.name, axis=1)
        best = self.op("ArgMax", scores, axis=1, keepdims=self.number(0, 1))
        best = self.op("Cast", best, to=TensorProto.FLOAT)
        if helper.get_node_attr_value(self.nodes[-2], "keepdims") == 0:
            best = self.op("Unsqueeze", best, [1])
        return self.op("Concat", scores, best, axis=1)

    def head(self):
        """Append what makes a vector of the map, and perhaps fully connected layers; return the output's name."""
        how = self.draw(st.sampled_from(["flat", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"]))
        if how == "ReduceMean":
            x, size = self.op(how, self.name, [2, 3], keepdims=0), self.shape[0]
        else:
            pooled = self.name if how == "flat" else self.op(how, self.name)
            x, size = self.flat(pooled), int(np.prod(self.shape)) if how == "flat" else self.shape[0]
        for width in self.draw(st.lists(st.integers(4, 9), max_size=2)):
            x, size = self.linear(x, size, width), width
            x = self.op("Sigmoid", x) if self.flip() else x
        return self.linear(x, size, 6)


STEPS = sorted(name for name in vars(Drawn) if name.startswith("step_"))


@dataclass
class Wanted:
    """A network and how it is to be split.

    `cuts` are places in hundredths, and one more cut comes after `trunk`, the last map; grids are tried in their order.
    """

    net: Drawn
    output: str
    optimise: bool
    cuts: list[int]
    trunk: str | None
    grids: list[str]
    seed: int
    dims: tuple[str, ...] = ("N", "K")
    story: list[str] = field(default_factory=list)

    def __repr__(self):
        return "\n  ".join([f"image {self.net.size}", *map(helper.printable_node, self.net.nodes), *self.story])


GRIDS = ["2x2", "1x2", "2x1", "3x2", "1x3", "3x3", "col2", "col3"]


@st.composite
def wanted(draw):
    net = Drawn(draw)
    for _ in range(net.number(2, 6)):
        getattr(net, draw(st.sampled_from(STEPS)))()
        net.thin()
    trunk, output = net.name, net.head()
    return Wanted(
        net=net,
        output=output,
        optimise=draw(st.integers(0, 9)) == 0,
        cuts=[draw(st.integers(0, 99)) for _ in range(net.number(0, 4))],
        trunk=trunk if draw(st.integers(0, 5)) else None,
        grids=draw(st.lists(st.sampled_from(GRIDS), min_size=5, max_size=5)),
        seed=draw(st.sampled_from([0, 1, 2, 3])),
    )


DENSE_GRIDS = ["4x4", "2x2", "3x4", "1x3", "4x1", "2x3"]
ENCODER = ["conv", "activation", "batch_norm", "residual", "pad", "instance_norm", "constant_map", "conv"]


@st.composite
def wanted_dense(draw):
    """An encoder and a decoder with skip connections, whose answer is a map."""
    net = Drawn(draw, LARGEST)
    skips = []
    for _ in range(net.number(1, 3)):
        for step in draw(st.lists(st.sampled_from(ENCODER), min_size=1, max_size=2)):
            getattr(net, f"step_{step}")()
            net.thin()
        skips.append((net.name, net.shape))
        draw(st.sampled_from([net.step_conv, net.step_pool]))()
    net.step_conv()
    for skip, shape in reversed(skips):
        net.resample(*shape[1:])
        net.merge(skip, shape)
    trunk, is_map = net.scores(), net.flip()
    return Wanted(
        net=net,
        output=trunk if is_map else net.flat(trunk),
        dims=("N", "C", "H", "W") if is_map else ("N", "K"),
        optimise=False,
        cuts=[draw(st.integers(0, 99)) for _ in range(net.number(0, 3))],
        trunk=trunk,
        grids=draw(st.lists(st.sampled_from(DENSE_GRIDS), min_size=4, max_size=4)),
        seed=draw(st.sampled_from([0, 1, 2, 3])),
    )
