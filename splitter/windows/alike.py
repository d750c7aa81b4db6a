"""Whether windows that have the same shape are computed by the same graph, constants included.

What an operator reads may shift with the image while what it computes of that does not: resizing with aligned corners
has other weights at every row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serfer.core.plan import AxisWindows
from splitter.network.graph import Graph
from splitter.network.unsupported import refuse
from splitter.plan_dir.emit import TileGraph, tile_graph
from splitter.windows.kinds import AxisSpans, regions_of

_ROUNDING = 1e-3
"""By how much constants may differ: ONNX Runtime rounds coordinates, those of row 10,000 to a thousandth."""


def check_alike(graph: Graph, spans: AxisSpans, windows: AxisWindows, across: AxisSpans, *, rows: bool) -> None:
    """Compare the graphs of the first, second, middle and last window of each kind along an axis.

    `across` has the windows along the other axis, of which one is taken. Raises ModelError that names the operator
    whose constants differ.
    """
    by_kind: dict[int, list[int]] = {}
    for number, window in enumerate(windows.windows):
        by_kind.setdefault(window.kind, []).append(number)
    for numbers in by_kind.values():
        some = sorted({numbers[place] for place in (0, min(1, len(numbers) - 1), len(numbers) // 2, -1)})
        graphs = [_graph(graph, spans, number, across, rows=rows) for number in some]
        for other in graphs[1:]:
            _compare(graph, graphs[0], other)


def _graph(graph: Graph, spans: AxisSpans, number: int, across: AxisSpans, *, rows: bool) -> TileGraph:
    here, there = (spans, number), (across, 0)
    regions = regions_of(here, there) if rows else regions_of(there, here)
    return tile_graph(graph, graph.nodes, regions, [graph.input], {graph.output: regions[graph.output]})


def _compare(graph: Graph, one: TileGraph, other: TileGraph) -> None:
    if [node.SerializeToString() for node in one.nodes] != [node.SerializeToString() for node in other.nodes]:
        pairs = zip(one.nodes, other.nodes, strict=False)
        names = [node.output[0] for node, twin in pairs if node.SerializeToString() != twin.SerializeToString()]
        _refuse(graph, names)
    differing = [
        name
        for name, value in one.constants.items()
        if value.shape != other.constants[name].shape
        or not np.allclose(value, other.constants[name], rtol=0, atol=_ROUNDING)
    ]
    if differing:
        _refuse(graph, differing)


def _refuse(graph: Graph, names: Sequence[str]) -> None:
    """Raise ModelError for the operator that made a tensor or constant of a tile's graph: its name begins with it."""
    made = [node for node in graph.nodes if any(name.startswith(node.output) for name in names)]
    node = made[0] if made else graph.nodes[-1]
    why = (
        "what it computes depends on where in the image it is; give sizes that are multiples of the network's stride, "
        "or export it with a factor in place of a size, and without aligned corners"
    )
    raise refuse(node.name, node.kind, why)
