"""The whole network on a part of an image: what the result of a map is compared with (serfer/mapping/comparison.py).

It is the network as it was read, in one piece, at the size of a part: padding stands at the part's ends, and further
from these than the network reads it makes what it makes of the image. Statistics of the whole image are an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from serfer.core.errors import ModelError
from serfer.core.exactness import TOLERANCE, difference
from serfer.core.geometry import Rect, Span
from serfer.core.plan import AxisRule, AxisWindows, Windows
from serfer.core.plan.crops import CropAxis
from serfer.core.plan.windows import at_least
from serfer.core.units import MIB
from serfer.splitter.network.graph import Graph, Node
from serfer.splitter.network.onnx_models import naming_failure, session_of
from serfer.splitter.network.size_guards import CHECKED_STEP
from serfer.splitter.network.source import Array
from serfer.splitter.plan_dir.emit import input_name, whole_tile
from serfer.splitter.tiling.regions import whole_regions
from serfer.splitter.windows.memory import peak_bytes
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.owned_elements import with_skipped
from serfer.splitter.windows.same_windows import BY_PLACE

SIDE = 128
"""Pixels of a part that are compared, along an axis, where it ends nowhere with the image."""
_MOST_BYTES = 1024 * MIB
"""Of the network's maps on a part, which the process that maps has in memory."""
Size = tuple[int, int]


def crop_of(network: Network, windows: Windows, channels: int) -> tuple[Graph | None, str]:
    """Return the graph of the parts that results are compared on; None where these do not tell the image's result.

    So it is where the network does not take images of a part's size, where it is too large, and where what a pixel
    becomes depends on where in the image it is; or on the image's size, of which a sentence says how.
    """
    if windows.positioned:
        return None, ""
    sides = _Side.of(windows.heights, windows), _Side.of(windows.widths, windows)
    rules = windows.rules.sides[-1] if windows.rules else None
    size = (sides[0].of_rule(rules.rows), sides[1].of_rule(rules.cols)) if rules else (sides[0].length, sides[1].length)
    image = sides[0].axis.size, sides[1].axis.size
    others = [(rows.size, cols.size) for rows in windows.heights for cols in windows.widths]
    if other := next((given for given in others if network.other_way(image, given)), None):
        of = " and ".join(f"{height} x {width}" for height, width in (image, other))
        return (
            None,
            f"images of {of} pixels go other ways through the network: make a plan for each, --size HEIGHTxWIDTH",
        )
    whole, network = network, network.going_as(image)

    def at(of: Network, size: Size) -> Graph:
        graph = of.checked(size) if windows.statistics else of.of_maps(size)
        return graph.once(with_skipped) if windows.rules else graph

    try:
        crop = at(network, size)
        larger = at(network, (sides[0].larger(size[0]), sides[1].larger(size[1])))
        if node := _sized(crop, at(whole, image)):
            return None, f"what {node.name!r} ({node.kind}) computes with depends on the image's size"
        small = all(peak_bytes(graph, whole_regions(graph, graph.nodes)) <= _MOST_BYTES for graph in (crop, larger))
        return (crop if small and _tells(network, crop, larger, sides, windows, channels) else None), ""
    except ModelError:
        return None, ""


def _sized(part: Graph, image: Graph) -> Node | None:
    """Return an operator that computes with other numbers, but as many, on a part than on the image."""
    for node in part.nodes:
        for name in part.constants(node) if node.kind not in BY_PLACE else ():
            one, other = part.weights[name], image.weights.get(name)
            if one.dtype != np.float32 or other is None or one.shape != other.shape or one is other:
                continue
            if not np.allclose(one, other, rtol=TOLERANCE, atol=0):
                return node
    return None


@dataclass(frozen=True)
class _Side:
    """An axis of the images: the windows along the longest one, the shortest one's pixels, and the network's stride."""

    axis: AxisWindows
    shortest: int
    stride: int

    @classmethod
    def of(cls, axes: Sequence[AxisWindows], windows: Windows) -> _Side:
        longest = max(axes, key=lambda axis: axis.size)
        return cls(longest, min(axis.size for axis in axes), windows.stride)

    @property
    def unit(self) -> int:
        return lcm(self.stride, CHECKED_STEP)

    @property
    def wanted(self) -> int:
        return sum(self.axis.reach or (0, 0)) + 2 * self.stride + SIDE

    @property
    def length(self) -> int:
        """Pixels of a part: as far past a multiple of the unit as the image, so that both may end together."""
        if self.axis.reach is None:
            return self.shortest
        return self.shortest - max(0, self.shortest - self.wanted) // self.unit * self.unit

    def of_rule(self, rule: AxisRule) -> int:
        """Return the same for images of any size: of those that end in the first of the ways in which they may."""
        end = rule.ends[0]
        return at_least(max(end.least, self.wanted), end.ending, rule.unit) or end.least

    def larger(self, length: int) -> int:
        return length if self.axis.reach is None else length + self.unit


def _tells(
    network: Network, crop: Graph, larger: Graph, sides: tuple[_Side, _Side], windows: Windows, channels: int
) -> bool:
    """Whether what the network makes of parts of a random image, at two corners, is what it makes of all of it."""
    shape, part_shape = larger.shape(larger.input), crop.shape(crop.input)
    random = np.random.default_rng(0)
    noise = random.standard_normal((1, channels, shape.height, shape.width), dtype=np.float32)
    image, known = network.source.like_images(noise), np.abs(random.standard_normal(windows.statistics, np.float32))
    whole = _run(larger, image, known)
    for far in (False, True):
        parts = [
            Span(size - length, size) if far else Span(0, length)
            for size, length in ((shape.height, part_shape.height), (shape.width, part_shape.width))
        ]
        part = Rect(*parts)
        made = _run(crop, np.ascontiguousarray(image[:, :, *part.slices]), known)
        for number, (one, other) in enumerate(zip(made, whole, strict=True)):
            place, told = _compared(part, one, other, (shape.height, shape.width), sides, windows.stride, number)
            if not told.area or not difference(one[:, :, *told.within(place).slices], other[:, :, *told.slices]).exact:
                return False
    return True


def _compared(
    part: Rect, one: Array, other: Array, size: Size, sides: tuple[_Side, _Side], unit: int, number: int
) -> tuple[Rect, Rect]:
    axes = []
    for side, pixels, result in zip(sides, size, other.shape[2:], strict=True):
        axis = side.axis.of_output(number)
        axes.append(CropAxis(pixels, result, axis.step, unit, axis.reach))
    rows, cols = axes
    high, wide = one.shape[2:]
    place = Rect(rows.made(part.rows, high), cols.made(part.cols, wide))
    return place, Rect(rows.compared(part.rows, high), cols.compared(part.cols, wide))


def _run(graph: Graph, image: Array, statistics: Array) -> list[Array]:
    inputs = {input_name(0): image} | ({input_name(1): statistics[None]} if statistics.size else {})
    model = whole_tile(graph).model({})
    with naming_failure("the network on a part of an image"):
        values: list[Array] = session_of(model).run(None, inputs)
    return [value.reshape(1, -1, *value.shape[-2:]) for value in values[: len(graph.outputs)]]
