"""Whether windows that have the same shape are computed by the same graph, constants included.

What an operator reads may shift with the image while what it computes of that does not: resizing with aligned corners
has other weights at every row, a selection of rows may have an exception in one window alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import AxisWindows
from serfer.splitter.network.graph import Graph, Node
from serfer.splitter.network.unsupported import refuse
from serfer.splitter.plan_dir.emit import TileGraph, tile_graph
from serfer.splitter.tiling.regions import Regions
from serfer.splitter.windows.strides import PLAINER_RESIZE
from serfer.splitter.windows.window_kinds import AxisSpans, regions_of

_ROUNDING = 1e-3
"""By how much constants may differ: ONNX Runtime rounds coordinates, those of row 10,000 to a thousandth."""
_ROW_ROUNDING = 2.0**-22
"""The same for each row, where there are so many that it is more: four units in the last place of float32."""
_BY_POSITION = "what it computes depends on where in the image it is"
BY_PLACE = frozenset({"Gather", "MatMul", "Resize"})
"""Operators that may have a constant for each row or column."""


def check_alike(graph: Graph, spans: AxisSpans, windows: AxisWindows, across: AxisSpans, *, rows: bool) -> None:
    """Compare the graphs of the first, second, middle and last window of each kind along an axis.

    `across` has the windows along the other axis, of which one is taken. What may have a constant for each row or
    column is compared for all windows. Raises ModelError that names the operator whose constants differ.
    """
    by_kind: dict[int, list[int]] = {}
    for number, window in enumerate(windows.windows):
        by_kind.setdefault(window.kind, []).append(number)
    by_place = [node for node in graph.nodes if node.kind in BY_PLACE]
    for numbers in by_kind.values():
        regions = {number: _regions(spans, number, across, rows=rows) for number in numbers}
        for node in by_place:  # before the rest: what reads a part of a tensor is not blamed for the part
            check_equal(
                [node],
                (tile_graph(graph, [node], region, [graph.input], {}) for region in regions.values()),
                spans.size,
            )
        some = sorted({numbers[place] for place in (0, min(1, len(numbers) - 1), len(numbers) // 2, -1)})
        whole = ((regions[number], {name: regions[number][name] for name in graph.outputs}) for number in some)
        tiles = (tile_graph(graph, graph.nodes, tile_regions, [graph.input], end) for tile_regions, end in whole)
        check_equal(graph.nodes, tiles, spans.size)


def _regions(spans: AxisSpans, number: int, across: AxisSpans, *, rows: bool) -> Regions:
    here, there = (spans, number), (across, 0)
    return regions_of(here, there) if rows else regions_of(there, here)


def check_equal(nodes: Sequence[Node], tiles: Iterator[TileGraph], size: int, why: str = _BY_POSITION) -> None:
    """Refuse the operator in which a tile's graph differs from the first one's, for a reason.

    Constants may differ by what ONNX Runtime rounds coordinates of an image of `size` pixels.
    """
    first = next(tiles)
    written = [node.SerializeToString() for node in first.nodes]
    rounding = max(_ROUNDING, size * _ROW_ROUNDING)
    for tile in tiles:
        if [node.SerializeToString() for node in tile.nodes] != written:
            pairs = zip(first.nodes, tile.nodes, strict=False)
            differing = [node.output[0] for node, twin in pairs if node.SerializeToString() != twin.SerializeToString()]
            _refuse(nodes, differing, why)
        differing = [
            name
            for name, value in first.constants.items()
            if name not in tile.constants or not _close(value, tile.constants[name], rounding)
        ]
        if differing:
            _refuse(nodes, differing, why)


def _close(one: NDArray[Any], other: NDArray[Any], rounding: float) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=0, atol=rounding)


def _refuse(nodes: Sequence[Node], names: Sequence[str], why: str) -> None:
    """Raise ModelError for the operator that made a tensor or constant of a tile's graph: its name begins with it.

    Or that reads it, where it is a weight of the network.
    """
    made = [node for node in nodes if any(name.startswith(node.output) for name in names)]
    readers = (node for node in nodes if any(name in node.inputs for name in names))
    node = max(made, key=lambda node: len(node.output), default=next(readers, nodes[-1]))
    if node.kind == "Resize":
        why += f"; {PLAINER_RESIZE}"
    raise refuse(node.name, node.kind, why)


def weights_by_size(graphs: Iterable[Graph]) -> frozenset[str]:
    """Return the weights that the network's graphs have at several sizes, but not with the same values."""
    known, differing = dict[str, NDArray[Any]](), set[str]()
    for graph in graphs:
        for name, value in graph.weights.items():
            first = known.setdefault(name, value)
            if not same_memory(value, first) and not np.array_equal(value, first):
                differing.update((name, f"{name}.inner"))  # as emit.py may call it
    return frozenset(differing)


def same_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and one.__array_interface__ == other.__array_interface__


def inlined(tile: TileGraph, names: Collection[str]) -> TileGraph:
    """Return the graph with these weights as constants of its own, which share no file with those of other graphs."""
    own = {name: value for name, value in tile.weights.items() if name in names}
    shared = {name: value for name, value in tile.weights.items() if name not in names}
    return replace(tile, weights=shared, constants=tile.constants | own, half=tile.half - own.keys())


class GraphNumbers:
    """Numbers graphs as they are seen: equal ones, constants included, have one number; equal weights have one name."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def of(self, tile: TileGraph) -> int:
        parts = [node.SerializeToString() for node in tile.nodes]
        parts += [value.SerializeToString() for value in (*tile.inputs, *tile.outputs)]
        for name, value in tile.constants.items():
            parts += [f"{name} {value.dtype} {value.shape}".encode(), np.ascontiguousarray(value).tobytes()]
        parts += [name.encode() for name in sorted(tile.weights)]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        return self._known.setdefault(digest.digest(), len(self._known))
