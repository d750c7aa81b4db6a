"""What a window takes of a function's memory, from which the size of windows follows."""

from __future__ import annotations

from collections.abc import Mapping

from serfer.core.costs.sessions import MAP_SESSIONS, WORKER_MB
from serfer.core.geometry import Rect
from serfer.core.plan import FETCHED
from serfer.core.units import FLOAT_BYTES, MIB
from serfer.splitter.network.graph import Graph
from serfer.splitter.windows.sections import read_maps

_WEIGHT_COPIES = {FETCHED: 3}
_PLAIN_COPIES = 2
_ARENA = 1.4
"""How much more than the maps that are alive at once a session takes: copies between layouts, and what lies between."""


def window_mb(graph: Graph, regions: Mapping[str, Rect], weights: int, weights_in: str) -> int:
    """Estimate the MB that a worker takes which computes windows of these regions; `weights` are bytes in fp32."""
    copies = _WEIGHT_COPIES.get(weights_in, _PLAIN_COPIES)
    maps = _ARENA * MAP_SESSIONS * peak_bytes(graph, regions)
    return int(WORKER_MB + (MAP_SESSIONS * copies * weights / 2 + maps) / MIB) + 1


def peak_bytes(graph: Graph, regions: Mapping[str, Rect]) -> int:
    """Return the bytes of the maps that are alive at once, at most, while operators run one after the other."""
    sizes = {name: FLOAT_BYTES * graph.shape(name).channels * rect.area for name, rect in regions.items()}
    alive = {*read_maps(graph)}
    peak = 0
    for position, node in enumerate(graph.nodes):
        alive.add(node.output)
        peak = max(peak, sum(sizes[name] for name in alive))
        alive = {name for name in alive if graph.last_use(name) > position or name in graph.outputs}
    return peak
