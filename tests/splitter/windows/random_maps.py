"""Random networks that make maps, and random sizes and windows for them.

Nine of ten are ONNX files of free height and width, one is a module, whose export takes seconds.
A case is drawn from its seed and number alone. What a network does to the size of its map is known to nobody here: it
is written into the graph, by Shape, where an operator needs it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional

from tests.support.onnx_graph import Graph

EACH = 10
"""Of so many cases one is a module."""
_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "half_pixel", "align_corners")
_NEAREST = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")
_SCALES = (2.0, 2.0, 3.0, 0.5, 0.5, 1.5, 0.25, 1 / 3, 0.75, 1.2)


@dataclass
class Case:
    """A network, the sizes of images that its plan is for, the side of windows, and words.

    The network is an ONNX model or a module. `image` is where a case says what its images are.
    """

    seed: int
    number: int
    model: onnx.ModelProto | nn.Module
    channels: int
    sizes: list[tuple[int, int]]
    window: int | str
    reduce: str | None
    story: list[str] = field(default_factory=list)

    def image(self, height, width):
        rng = np.random.default_rng((self.seed, self.number, height, width))
        return rng.standard_normal((1, self.channels, height, width), dtype=np.float32)

    def __str__(self):
        module = isinstance(self.model, nn.Module)
        story = "; ".join(self.story if module else map(helper.printable_node, self.model.graph.node))
        return f"case {self.number} of seed {self.seed}: sizes {self.sizes}, window {self.window}: {story}"


STATISTICS = ("norm", "gates", "context")
"""Steps that take statistics of the whole image, of networks that have one output."""


USUAL = {"conv": 6, "skip": 5, "activation": 3, "pool": 3, "resize": 3, "scaled_by_size": 2}
RARE = {"shuffled": 0.5, "placed": 0.2, "flipped": 0.2, "global": 0.1}
"""How often steps are drawn, where it is not once."""


class Drawn(Graph):
    """A network that grows operator by operator; `name` and `channels` are the current map's."""

    def __init__(self, rng):
        super().__init__(rng.getrandbits(60))
        self.rng, self.story = rng, []
        self.name, self.channels = "x", rng.choice([1, 2, 3])
        self.first = self.channels
        self.kept = [("x", self.channels)]

    def floats(self, *shape, scale=1.0):
        return self.random.standard_normal(shape) * scale

    def then(self, kind, *inputs, **attributes):
        self.name = self.op(kind, self.name, *inputs, **attributes)

    def side(self, axis, of=None):
        """Return the number of rows (2) or columns (3) of a map, an int64 tensor (1,)."""
        return self.op("Gather", self.op("Shape", of or self.name), [axis], axis=0)

    def conv(self, kernel, **attributes):
        channels = self.rng.randint(1, 6)
        weight = self.floats(channels, self.channels, *kernel, scale=(self.channels * kernel[0] * kernel[1]) ** -0.5)
        self.then("Conv", weight, self.floats(channels, scale=0.1), **attributes)
        self.channels = channels

    def grow(self, most):
        """Append operators, weighed by how usual they are, and a convolution at the end."""
        steps = [name for name in dir(self) if name.startswith("step_")]
        weights = [(USUAL | RARE).get(name.removeprefix("step_"), 1) for name in steps]
        for name in self.rng.choices(steps, weights, k=self.rng.randint(1, most)):
            before = self.name
            replaced = getattr(self, name)()
            self.story.append(name.removeprefix("step_") + (f" replaced at {replaced}" if replaced else ""))
            if self.name != before:
                self.kept.append((self.name, self.channels))
        if self.rng.random() < 0.7:
            self.conv((3, 3), pads=[1, 1, 1, 1])

    def step_conv(self):
        rng = self.rng
        kernel = [rng.choice([1, 2, 3, 3, 3, 4, 5, 7]) for _ in "hw"]
        strides = [rng.choice([1, 1, 1, 2, 2, 3])] * 2 if rng.random() < 0.8 else [rng.choice([1, 2, 3]) for _ in "hw"]
        dilations = [rng.choice([1, 1, 1, 2, 3])] * 2
        same = [dilation * (size - 1) // 2 for size, dilation in zip(kernel, dilations, strict=True)] * 2
        pads = rng.choice([same, same, same, [0] * 4, [rng.randint(0, 3) for _ in "tlbr"]])
        self.conv(kernel, strides=strides, dilations=dilations, pads=pads)

    def step_activation(self):
        self.then(self.rng.choice(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish"]))

    def step_pool(self):
        rng = self.rng
        kernel = [rng.choice([2, 2, 3])] * 2
        stride, ceil = rng.choice([1, 2, 2, 2, 3]), rng.randint(0, 1)
        pads = [rng.choice([0, 0, 1])] * 4
        kind = rng.choice(["MaxPool", "AveragePool"])
        more = {"count_include_pad": rng.randint(0, 1)} if kind == "AveragePool" else {}
        self.then(kind, kernel_shape=kernel, strides=[stride] * 2, pads=pads, ceil_mode=ceil, **more)

    def step_transposed(self):
        rng = self.rng
        kernel, stride = rng.choice([(2, 2), (3, 2), (4, 2), (3, 3), (3, 1), (5, 4)])
        pad, more = rng.randint(0, (kernel - 1) // 2), rng.randint(0, stride - 1)
        channels = rng.randint(1, 4)
        weight = self.floats(self.channels, channels, kernel, kernel, scale=(self.channels * kernel) ** -0.5)
        self.then("ConvTranspose", weight, strides=[stride] * 2, pads=[pad] * 4, output_padding=[more] * 2)
        self.channels = channels

    def step_pad(self):
        rng = self.rng
        mode = rng.choice(["constant", "reflect", "edge"])
        amounts = [rng.randint(0, 5) for _ in "tlbr"]
        if mode == "constant" and rng.random() < 0.5:
            amounts = [rng.randint(-7, 5) for _ in "tlbr"]
        self.then("Pad", [0, 0, *amounts[:2], 0, 0, *amounts[2:]], mode=mode)

    def step_crop(self):
        top, left, bottom, right = (self.rng.randint(0, 12) for _ in "tlbr")
        self.then("Slice", [top, left], [-bottom or 2**62, -right or 2**62], [2, 3])

    def step_every_other(self):
        start, step = self.rng.randint(0, 2), self.rng.choice([2, 2, 3])
        axis = self.rng.choice([2, 3])
        self.then("Slice", [start], [2**62], [axis], [step])

    def _mode(self):
        mode = self.rng.choice(["nearest", "nearest", "linear", "linear", "cubic"])
        attributes = {"mode": mode, "coordinate_transformation_mode": self.rng.choice(_PLACES)}
        if mode == "nearest":
            place = self.rng.choice([*_PLACES, "asymmetric", "asymmetric"])
            attributes |= {"coordinate_transformation_mode": place, "nearest_mode": self.rng.choice(_NEAREST)}
        return attributes

    def step_resize(self):
        scale = self.rng.choice(_SCALES)
        scales = [scale, scale] if self.rng.random() < 0.8 else [scale, 1.0]
        attributes = self._mode()
        self.then("Resize", "", np.float32([1, 1, *scales]), **attributes)

    def step_resize_to_a_size(self):
        rng = self.rng
        if rng.random() < 0.2:
            self.then("Resize", "", "", [1, self.channels, 64, 64], **self._mode())
            return
        up, down, more = rng.choice([(2, 1, 0), (1, 2, 0), (3, 2, 0), (1, 1, 1), (1, 1, -7), (2, 1, -1), (1, 4, 0)])
        attributes = self._mode()
        sides = [
            self.op("Add", self.op("Div", self.op("Mul", self.side(axis), [up]), [down]), [more]) for axis in (2, 3)
        ]
        self.then("Resize", "", "", self.op("Concat", [1, self.channels], *sides, axis=0), **attributes)

    def step_skip(self):
        """Resize the map to the size of an earlier one, or crop or pad it to that, and join the two."""
        name, channels = self.rng.choice(self.kept)
        how = self.rng.choice(["resize", "resize", "resize", "pad"])
        attributes = self._mode()
        sides = [self.side(axis, name) for axis in (2, 3)]
        if how == "resize":
            self.then("Resize", "", "", self.op("Concat", [1, self.channels], *sides, axis=0), **attributes)
        else:
            more = [self.op("Sub", side, self.side(axis)) for axis, side in zip((2, 3), sides, strict=True)]
            before = [self.op("Div", each, [2]) for each in more]
            after = [self.op("Sub", each, half) for each, half in zip(more, before, strict=True)]
            self.then("Pad", self.op("Concat", [0, 0], *before, [0, 0], *after, axis=0))
        if channels == self.channels and self.rng.random() < 0.5:
            self.then("Add", name)
        else:
            self.then("Concat", name, axis=1)
            self.channels += channels

    def step_scaled_by_size(self):
        """Multiply by a number that depends on the height, the width, both, or the larger of them."""
        how = self.rng.choice(["height", "width", "area", "larger", "per channel", "weights"])
        height, width = (self.op("Cast", self.side(axis, "x"), to=TensorProto.FLOAT) for axis in (2, 3))
        number = {"width": width, "area": self.op("Mul", height, width), "larger": self.op("Max", height, width)}.get(
            how, height
        )
        factor = self.op("Div", [100.0], number)
        if how == "weights":
            channels = self.rng.choice([4, 20])
            weight = self.op("Mul", self.floats(channels, self.channels, 3, 3, scale=0.3), factor)
            self.then("Conv", weight, pads=[1, 1, 1, 1])
            self.channels = channels
            return
        if how == "per channel":
            factor = self.op("Mul", self.floats(1, self.channels, 1, 1), factor)
        self.then(self.rng.choice(["Mul", "Add"]), factor)

    def step_padded_to_a_multiple(self):
        """Pad rows and columns to a multiple, as networks of patches do."""
        multiple = self.rng.choice([2, 7, 8, 16])
        more = [self.op("Mod", self.op("Neg", self.side(axis)), [multiple]) for axis in (2, 3)]
        self.then("Pad", self.op("Concat", [0, 0, 0, 0, 0, 0], *more, axis=0))

    def step_cut_to_a_multiple(self):
        multiple = self.rng.choice([2, 4, 8])
        ends = [self.op("Mul", self.op("Div", self.side(axis), [multiple]), [multiple]) for axis in (2, 3)]
        self.then("Slice", [0, 0], self.op("Concat", *ends, axis=0), [2, 3])

    def step_selected_rows(self):
        """Select all rows or columns, a few of them replaced by others, as dead lines of a sensor are."""
        axis, rng = self.rng.choice([2, 3]), self.rng
        numbers = self.op("Range", 0, self.op("Squeeze", self.side(axis)), 1)
        dead = [rng.randint(1, 150) for _ in range(rng.choice([0, 1, 1, 2]))]
        for line in dead:
            hit = self.op("Equal", numbers, [line])
            numbers = self.op("Where", hit, [line - 1], numbers)
        self.then("Gather", numbers, axis=axis)
        return dead

    def step_flipped(self):
        axis = self.rng.choice([2, 3])
        self.then("Slice", [-1], [-(2**62)], [axis], [-1])

    def step_placed(self):
        """Add the number of its row to each pixel, or to each pixel of even rows."""
        numbers = self.op("Range", 0.0, self.op("Cast", self.op("Squeeze", self.side(2)), to=1), 1.0)
        if self.rng.random() < 0.5:
            numbers = self.op("Mod", numbers, 2.0, fmod=1)
        self.then("Add", self.op("Reshape", numbers, [1, 1, -1, 1]))

    def step_shuffled(self):
        if self.channels % 4 == 0:
            self.then("DepthToSpace", blocksize=2)
            self.channels //= 4
        else:
            self.then("SpaceToDepth", blocksize=2)
            self.channels *= 4

    def step_other_way_by_size(self):
        limit, channels = self.rng.choice([100, 150, 200]), self.rng.randint(1, 4)
        condition = self.op("Squeeze", self.op("Greater", self.side(2, "x"), [limit]))
        weights = [self.normal(channels, self.channels, 3, 3, deviation=0.4) for _ in "ab"]
        strides = self.rng.choice([[1, 1], [1, 1], [1, 2]])
        branches = {}
        for way, weight, stride in zip(("then_branch", "else_branch"), weights, strides, strict=True):
            out = f"{way}_{len(self.nodes)}"
            node = helper.make_node("Conv", [self.name, weight], [out], out, pads=[1] * 4, strides=[stride] * 2)
            branches[way] = helper.make_graph([node], out, [], [helper.make_tensor_value_info(out, 1, None)])
        self.name = self.op("If", condition, **branches)
        self.channels = channels

    def step_global(self):
        self.then("Mul", self.op("ReduceMean", self.name, [self.rng.choice([2, 3])]))

    def step_gates(self):
        """Squeeze-and-excite, of means or maxima, or both, before or after an activation."""
        pools = self.rng.choice([("GlobalAveragePool",), ("GlobalMaxPool",), ("GlobalAveragePool", "GlobalMaxPool")])
        weight = self.floats(self.channels, self.channels, 1, 1)
        gates = [self.op("Conv", self.op(pool, self.name), weight) for pool in pools]
        gate = gates[0] if len(gates) == 1 else self.op("Add", *gates)
        self.then("Mul", self.op("Sigmoid", gate))

    def step_norm(self):
        """Instance or group norm, as operators or by hand, around the mean or around zero."""
        how = self.rng.choice(["InstanceNormalization", "GroupNormalization", "means", "squares", "ReduceL2"])
        scale, shift = self.floats(self.channels), self.floats(self.channels)
        axes, tiny = [2, 3], 1e-3
        if how == "InstanceNormalization":
            self.then(how, scale, shift)
        elif how == "GroupNormalization":
            groups = self.rng.choice([each for each in range(1, 7) if self.channels % each == 0])
            self.then(how, scale, shift, num_groups=groups)
        elif how == "means":
            apart = self.op("Sub", self.name, self.op("ReduceMean", self.name, axes))
            variance = self.op("ReduceMean", self.op("Mul", apart, apart), axes)
            self.name = self.op("Div", apart, self.op("Sqrt", self.op("Add", variance, tiny)))
        elif how == "squares":
            square = self.op("ReduceMean", self.op("Pow", self.name, 2.0), [1, 2, 3])
            self.then("Div", self.op("Sqrt", self.op("Add", square, tiny)))
        else:
            norms = self.op("ReduceL2", self.name, axes)
            self.then("Div", self.op("Add", self.op("ReduceMean", norms, [1]), tiny))

    def step_context(self):
        """A vector of the whole image, at every position beside the map, or added to it."""
        vector = self.op("ReduceMean", self.name, [2, 3], keepdims=0)
        weight = self.floats(self.channels, self.channels, scale=self.channels**-0.5)
        vector = self.op("Gemm", self.op("Relu", vector), weight)
        context = self.op("Unsqueeze", vector, [2, 3])
        if self.rng.random() < 0.5:
            self.then("Add", context)
            return
        size = self.op("Concat", [1, 1], *(self.side(axis) for axis in (2, 3)), axis=0)
        self.name = self.op("Concat", self.name, self.op("Expand", context, size), axis=1)
        self.channels *= 2

    def model(self, more=()):
        """Return the ONNX model, whose first output is the last map; `more` are others of its maps."""
        return super().model(dict.fromkeys((self.name, *more)), image="x", channels=self.first)


def drawn_sizes(rng):
    """Return the sizes of one to three images: often multiples of strides, often past them, in any order."""

    def side():
        unit = rng.choice([1, 8, 16, 32])
        return max(24, rng.randint(40, 230) // unit * unit + rng.choice([0, 0, 0, 0, 1, -1, 3, 7]))

    sizes = [(side(), side()) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    if rng.random() < 0.2:
        sizes = [(height, height) for height, _ in sizes]
    return [*dict.fromkeys(sizes)]


def draw(seed, number, *, several=False):
    """Return case `number` of a seed; with `several`, some networks have a second output."""
    rng = random.Random(f"{seed} {number}")  # noqa: S311 - no secret
    if number % EACH == EACH - 1:
        module = DrawnModule(rng, 3)
        story = [*module.story, f"limit {module.limit}, multiple {module.multiple}, {module.mode}"]
        return Case(seed, number, module.eval(), 3, drawn_sizes(rng), rng.choice([32, 48, 64, 96]), None, story)
    net = Drawn(rng)
    net.grow(8)
    window = rng.choice([16, 24, 32, 48, 48, 64, 96, "auto"])
    reduce = rng.choice([None] * 5 + ["argmax"]) if net.channels > 1 else None
    sizes = drawn_sizes(rng)
    inner = [name for name, _ in net.kept if name not in ("x", net.name)]
    several = several and reduce is None and not any(step.startswith(STATISTICS) for step in net.story)
    more = [rng.choice(inner)] if several and inner and rng.random() < 0.3 else []
    story = [*net.story, *(f"a second output {name}" for name in more)]
    return Case(seed, number, net.model(more), net.first, sizes, window, reduce, story)


class DrawnModule(nn.Module):
    """Convolutions, and between them steps that are drawn: `story` says which."""

    def __init__(self, rng, channels):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(rng.getrandbits(30))
            self.convolutions = nn.ModuleList(
                nn.Conv2d(channels if number == 0 else 4, 4, rng.choice([1, 3, 3, 5]), padding=rng.choice([0, 1, 1, 2]))
                for number in range(rng.randint(2, 4))
            )
        self.limit = rng.choice([60, 100, 150, 200, 250])
        self.multiple = rng.choice([2, 7, 8, 12, 14])
        self.mode = rng.choice(["nearest", "bilinear", "bicubic"])
        self.story = [rng.choice(STEPS) for _ in self.convolutions]

    def forward(self, image):
        values = image
        for convolution, step in zip(self.convolutions, self.story, strict=True):
            values = getattr(self, step)(convolution(values).relu(), image)
        return values

    def nothing(self, values, _image):
        return values

    def halved(self, values, _image):
        return functional.max_pool2d(values, 2, ceil_mode=self.limit > 100)

    def of_the_image_s_size(self, values, image):
        return functional.interpolate(values, size=image.shape[2:], mode=self.mode)

    def halved_and_back(self, values, _image):
        return functional.interpolate(functional.avg_pool2d(values, 2), size=values.shape[2:], mode=self.mode)

    def padded_where_needed(self, values, _image):
        height, width = values.shape[2:]
        if height % self.multiple:
            values = functional.pad(values, (0, 0, 0, self.multiple - height % self.multiple))
        if width % self.multiple:
            values = functional.pad(values, (0, self.multiple - width % self.multiple))
        return values

    def smaller_where_large(self, values, image):
        return functional.avg_pool2d(values, 2) if max(image.shape[2:]) > self.limit else values

    def by_its_longer_side(self, values, image):
        return values * 2 if image.shape[2] > image.shape[3] else values.tanh()

    def larger_where_small(self, values, image):
        return functional.pad(values, (3, 0, 2, 1)) if image.shape[2] < self.limit else values

    def scaled_by_size(self, values, image):
        return values * (100 / image.shape[2]) + image.shape[3] / 300


STEPS = [
    *("nothing", "halved", "of_the_image_s_size", "halved_and_back", "scaled_by_size"),
    *("padded_where_needed", "smaller_where_large", "by_its_longer_side", "larger_where_small"),
]
