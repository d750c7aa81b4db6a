"""The whole network on a part of an image: what the result of a map is compared with (serfer/mapping/comparison.py).

It is the network as it was read, in one piece, at the size of a part, with the numbers that it makes of the image's:
padding stands at the part's ends, and further from these than the network reads it makes what it makes of the image.
That is so where each operator does the same there, which is compared here. Statistics of the image are an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.geometry import Rect
from serfer.core.plan import AxisRule, AxisWindows, ImageWindows, Windows
from serfer.core.plan.crops import compared_part, places_of
from serfer.core.plan.windows import at_least
from serfer.core.units import MIB
from serfer.splitter.network.graph import BROADCAST, NCHW, STATISTICS, Graph, Node, needed_for
from serfer.splitter.network.interpolation import interpolation
from serfer.splitter.network.size_guards import CHECKED_STEP
from serfer.splitter.plan_dir.emit import renamed, tile_graph
from serfer.splitter.tiling.regions import Regions, infer_regions, input_region, whole_regions
from serfer.splitter.windows.memory import peak_bytes
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.owned_elements import with_skipped
from serfer.splitter.windows.same_windows import BY_PLACE, same_memory

SIDE = 128
"""Pixels of a part that are compared, along an axis, where it ends nowhere with the image."""
_MOST_BYTES = 1024 * MIB
"""Of the network's maps on a part, which the process that maps has in memory."""
_ROUNDED, _ROUNDING = 1e-6, 1e-5
"""By how much numbers may differ, relative to them; and weights of rows, as ONNX Runtime rounds their places."""
Size = tuple[int, int]


def crop_of(network: Network, windows: Windows) -> tuple[Graph | None, str]:
    """Return the graph of the parts that results are compared on; None where these do not tell the image's result.

    So it is where the network does not take images of a part's size, where it is too large, and where what a pixel
    becomes depends on where in the image it is; or on the image's size, of which a sentence says how.
    """
    if windows.positioned:
        return None, ""
    rows, cols = (windows.rules.sides[-1].rows, windows.rules.sides[-1].cols) if windows.rules else (None, None)
    size = _length(windows.heights, windows.stride, rows), _length(windows.widths, windows.stride, cols)
    image = max(axis.size for axis in windows.heights), max(axis.size for axis in windows.widths)
    images = [(rows.size, cols.size) for rows in windows.heights for cols in windows.widths]
    if other := next((given for given in images if network.other_way(image, given)), None):
        of = " and ".join(f"{height} x {width}" for height, width in (image, other))
        return (
            None,
            f"images of {of} pixels go other ways through the network: make a plan for each, --size HEIGHTxWIDTH",
        )

    def at(of: Network, size: Size) -> Graph:
        graph = of.checked(size) if windows.statistics else of.of_maps(size)
        return graph.once(with_skipped) if windows.rules else graph

    try:
        crop = _with_numbers(at(network.going_as(image), size), at(network, image))
        if peak_bytes(crop, whole_regions(crop, crop.nodes)) > _MOST_BYTES:
            return (
                None,
                f"on a part of {size[0]} x {size[1]} pixels it has more than {_MOST_BYTES // MIB:,} MiB of maps",
            )
        first = at(network, images[0])
        down, across = (axis.rates for axis in network.strides(first))
        known = {name: (down[twin], across[twin]) for name, twin in _Twins(crop, first).names.items() if twin in down}
        for given in images:
            if node := _Twins(crop, at(network, given), known).differing(windows.of(*given), size, windows.stride):
                return None, f"what {node.name!r} ({node.kind}) computes of a part differs from that of the image"
    except ModelError as error:
        return None, f"a part of {size[0]} x {size[1]} pixels: {error}"
    return crop, ""


def _with_numbers(part: Graph, image: Graph) -> Graph:
    """Return the part's graph with the numbers of the image's, such as its height, where they are none of shapes."""
    numbers = {}
    for node, twin in zip(part.nodes, image.nodes, strict=False):
        for name, own in zip(node.inputs, twin.inputs, strict=False) if node.kind not in BY_PLACE else ():
            one, other = part.weights.get(name), image.weights.get(own)
            if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
                continue
            if node.kind in BROADCAST or one.dtype == np.float32:
                numbers[name] = other
    return replace(part, weights=part.weights | numbers)


@dataclass(frozen=True)
class _Twins:
    """The network at a part's size and at an image's, operator by operator.

    `rates` are the rows and columns of each tensor of the part for one of the image.
    """

    part: Graph
    image: Graph
    rates: Mapping[str, tuple[Fraction, Fraction]] = field(default_factory=dict)

    @cached_property
    def twins(self) -> Mapping[str, Node]:
        return {node.output: twin for node, twin in zip(self.part.nodes, self.image.nodes, strict=False)}

    @cached_property
    def names(self) -> Mapping[str, str]:
        own = {"": "", STATISTICS: STATISTICS, self.part.input: self.image.input}
        return own | {name: twin.output for name, twin in self.twins.items()}

    def differing(self, windows: ImageWindows, size: Size, unit: int) -> Node | None:
        """Return an operator that makes something else of a part that is compared than of the image there."""
        if node := self._paired_wrongly():
            return node
        places, seen = places_of(windows, size, unit), set[tuple[str, Rect]]()
        for number, output in enumerate(self.part.outputs):
            shape, own = self.part.shape(output), windows.of_output(number)
            told = [compared_part(own, place, (shape.height, shape.width), unit) for place in places]
            told_at = [(place, *rects) for place, rects in zip(places, told, strict=True) if rects[0].area]
            if not told_at:
                continue
            nodes = needed_for(self.part.nodes, [output])
            twins, twin = [self.twins[node.output] for node in nodes], self.names[output]
            here = infer_regions(self.part, nodes, [{output: inside} for _, _, inside in told_at])
            there = infer_regions(self.image, twins, [{twin: rect} for _, rect, _ in told_at])
            for (place, _, _), regions, wanted in zip(told_at, here, there, strict=True):
                if node := self._differing_at(place, nodes, regions, wanted, seen):
                    return node
        return None

    def _paired_wrongly(self) -> Node | None:
        part, image = self.part, self.image
        for node in part.nodes:
            twin = self.twins.get(node.output, node)
            given = [name in part.weights or self.names[name] for name in node.inputs]
            if (node.kind, given) != (twin.kind, [name in image.weights or name for name in twin.inputs]):
                return node
        return None if len(part.nodes) == len(image.nodes) else part.nodes[-1]

    def _differing_at(
        self, place: Rect, nodes: Sequence[Node], regions: Regions, wanted: Regions, seen: set[tuple[str, Rect]]
    ) -> Node | None:
        moved = {name for name, rect in regions.items() if self._shifted(name, rect, place) != wanted[self.names[name]]}
        if moved:
            return next((node for node in reversed(nodes) if moved & {*node.inputs}), nodes[-1])
        for node in nodes:
            key, by_place = (node.output, regions[node.output]), node.kind in BY_PLACE
            if key in seen and not by_place:
                continue
            seen.add(key)
            one, other = _written(self.part, node, regions), _written(self.image, self.twins[node.output], wanted)
            if not _alike(one, other, _ROUNDING if by_place else 0):
                return node
        return None

    def _shifted(self, name: str, rect: Rect, place: Rect) -> Rect | None:
        rates = self.rates.get(name, (Fraction(0),) * 2)
        rows, cols = (side.start * rate for side, rate in zip((place.rows, place.cols), rates, strict=True))
        whole = rows.denominator == cols.denominator == 1
        return Rect(rect.rows.moved(int(rows)), rect.cols.moved(int(cols))) if whole else None


_Written = tuple[list[bytes], list[NDArray[Any]]]


def _written(graph: Graph, node: Node, regions: Regions) -> _Written:
    """Return an operator as it is written for a region, without names, and its constants in order."""
    if node.kind == "Resize":  # may be written in several ways
        region, source = regions[node.output], node.inputs[0]
        read = input_region(graph, node, source, region).clipped
        spans = zip(NCHW, (region.rows, region.cols), (read.rows, read.cols), strict=True)
        place = read.within(regions[source])
        weights = [interpolation(graph, node, axis).matrix(*sides) for axis, *sides in spans]
        return [], [np.array([place.rows.start, place.cols.start]), *weights]
    tile, names = tile_graph(graph, [node], regions, [], {}), {"": ""}
    for name in (name for written in tile.nodes for name in (*written.input, *written.output)):
        names.setdefault(name, str(len(names)))
    values = tile.weights | tile.constants
    nodes = [renamed(written, names).SerializeToString() for written in tile.nodes]
    return nodes, [values[name] for name in names if name in values]


def _alike(one: _Written, other: _Written, rounding: float) -> bool:
    return one[0] == other[0] and all(
        value.shape == twin.shape
        and (same_memory(value, twin) or np.allclose(value, twin, rtol=_ROUNDED, atol=rounding, equal_nan=True))
        for value, twin in zip(one[1], other[1], strict=True)
    )


def _length(axes: Sequence[AxisWindows], stride: int, rule: AxisRule | None) -> int:
    """Return pixels of a part: as far past a multiple of the unit as the image, so that both may end together."""
    longest, shortest = max(axes, key=lambda axis: axis.size), min(axis.size for axis in axes)
    wanted = sum(longest.reach or (0, 0)) + 2 * stride + SIDE
    if rule:
        end = rule.ends[0]  # of images of any size, those that end in the first of the ways in which they may
        return at_least(max(end.least, wanted), end.ending, rule.unit) or end.least
    unit = lcm(stride, CHECKED_STEP)
    return shortest if longest.reach is None else shortest - max(0, shortest - wanted) // unit * unit
