"""What a function can hold: weights in its package, and weights and maps in its memory."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np

from serfer.core.costs.cold_starts import ColdStart, cold_start
from serfer.core.costs.cost_model import Floats, Platform, starting_usd
from serfer.core.costs.sessions import WORKER_MB
from serfer.core.geometry import Grid
from serfer.core.plan import CONTAINER, FETCHED, ZIP
from serfer.core.units import FLOAT_BYTES, MIB
from serfer.splitter.network.graph import Graph, Node
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.planning.stage_costs import StageWork
from serfer.splitter.tiling.as_is import part_of
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.grids import tile_rects
from serfer.splitter.tiling.regions import infer_regions

_COPIES = 2  # of weights: the file's pages, and the session's own layout
_FETCHED_COPIES = 3  # what was fetched, ONNX Runtime's copy of it, and the session's own layout (lambdas/sessions.py)
_LIVE_MAPS = 3  # an operator's input and output, and what it works in


@dataclass(frozen=True)
class WeightStorage:
    """How weights may be stored: those in `half` in fp16, `always` or where a stage would not fit otherwise.

    `places` are where functions may have them (`Stage.weights_in`), the preferred one first. Where fp16 is `allowed`,
    all weights that a zip does not hold in fp32 are stored in it. With `spread`, the columns of a
    fully connected layer may go to several functions; `apart`, each group of columns is a function of its own.
    """

    half: frozenset[str] = frozenset()
    always: bool = False
    allowed: bool = False
    spread: bool = False
    places: tuple[str, ...] = (ZIP,)
    apart: bool = False


@dataclass(frozen=True)
class Fit:
    """How functions hold a stage or a gang: memory sizes to choose from, and weights, in fp16 if `half`, in a place.

    `lost` are the bytes of weights that lose precision because they would not fit otherwise. `apart`: each group of
    columns is a function of its own, with `weight_bytes` at most.
    """

    memory_mb: tuple[int, ...]
    half: bool
    weight_bytes: int
    lost: int = 0
    weights_in: str = ZIP
    apart: bool = False

    def cold_start(self, platform: Platform) -> ColdStart:
        return cold_start(self.weight_bytes, self.weights_in, platform.functions)

    def starts_usd(self, tasks: int, memory_mb: Floats, platform: Platform, start: int) -> Floats | None:
        """Price the cold starts of so many tasks of a step from node `start` on, in the share of the queries.

        That is the platform's. A price for each memory; None where no query is cold.
        """
        if not platform.cold_share:
            return None
        billed_s = self.cold_start(platform).billed_seconds
        usd = starting_usd(tasks, memory_mb, billed_s, platform.functions, first=not start)
        return np.asarray(platform.cold_share * usd)


@dataclass(frozen=True)
class FunctionLimits:
    """Finds how functions hold nodes of a network within a budget."""

    graph: Graph
    budget: Budget
    storage: WeightStorage
    _known_bytes: dict[tuple[int, int, bool], int] = field(default_factory=dict, init=False, compare=False)

    def of_stage(self, work: StageWork) -> Fit | None:
        if work.grid.columns and self.storage.apart:
            return self._held_apart(work.start, work.stop, work.grid)
        return self._find_place(work.start, work.stop, work.grid if work.grid.columns else None)

    def of_gang(self, start: int, stop: int) -> Fit | None:
        return self._find_place(start, stop, None)

    def _find_place(self, start: int, stop: int, columns: Grid | None) -> Fit | None:
        whole = self._weight_bytes(start, stop)
        for place, half in self._ways:
            size = self._weight_bytes(start, stop, half=True) if half else whole
            spread = columns if place == ZIP else None
            if self._has_room(start, stop, size, spread, place, self.storage.half if half else ()):
                share = columns.tiles if columns and place == ZIP else 1
                memory = self._memory_for(start, stop, whole // share, place)
                free = not half or self.storage.always or self.storage.allowed
                lost = 0 if free else size
                if spread and size > room_in(place, self.budget):
                    nodes = self.graph.nodes[start:stop]
                    size = column_bytes(self.graph, nodes, spread, self.storage.half if half else ())
                return Fit(memory, half, size, lost, weights_in=place) if memory else None
        return None

    def _held_apart(self, start: int, stop: int, columns: Grid) -> Fit | None:
        nodes = self.graph.nodes[start:stop]
        full = column_bytes(self.graph, nodes, columns)
        for place, half in self._ways:
            size = column_bytes(self.graph, nodes, columns, self.storage.half) if half else full
            memory = self._memory_for(start, stop, full, place)
            if size <= room_in(place, self.budget) and memory:
                return Fit(memory, half, size, weights_in=place, apart=True)
        return None

    @cached_property
    def _ways(self) -> tuple[tuple[str, bool], ...]:
        """Places and whether weights are in fp16 there, the best first: fp32 in a zip starts fast and loses nothing."""
        storage, ways = self.storage, []
        half = bool(storage.half) or storage.always
        for place in storage.places:
            if not (storage.always or (storage.allowed and half and place != ZIP)):
                ways.append((place, False))
            if half:
                ways.append((place, True))
        return tuple(ways)

    def _memory_for(self, start: int, stop: int, weights: int, place: str) -> tuple[int, ...]:
        need = memory_needed(self.graph, start, stop, weights, place)
        return tuple(size for size in self.budget.memory_mb if size >= need)

    def _weight_bytes(self, start: int, stop: int, *, half: bool = False) -> int:
        key = (start, stop, half)
        if key not in self._known_bytes:
            self._known_bytes[key] = weight_bytes(self.graph, start, stop, self.storage.half if half else ())
        return self._known_bytes[key]

    def _has_room(
        self, start: int, stop: int, size: int, columns: Grid | None, place: str, half: Container[str]
    ) -> bool:
        room = room_in(place, self.budget)
        if size <= room or not (self.storage.spread and columns):
            return size <= room
        return column_bytes(self.graph, self.graph.nodes[start:stop], columns, half) <= room


def room_in(place: str, budget: Budget) -> int:
    """Return the bytes of weights that a function has room for in a place; fetched ones are bounded by its memory."""
    if place == FETCHED:
        return sys.maxsize
    return budget.facts.functions.image_limit - budget.limit.dependencies if place == CONTAINER else budget.limit.room


def column_bytes(graph: Graph, nodes: Sequence[Node], grid: Grid, half: Container[str] = ()) -> int:
    """Return the bytes of weights that the first (and largest) of a grid's groups of columns needs.

    Layers before the last fully connected one are computed whole by every group.
    """
    target = nodes[-1].output
    (regions,) = infer_regions(graph, nodes, [{target: tile_rects(graph, target, grid)[0]}])
    sizes: dict[str, int] = {}
    for node in nodes:
        area, whole = regions[node.output].area, graph.shape(node.output).whole.area
        for name in graph.constants(node):
            size = graph.weights[name].nbytes // (2 if name in half else 1)
            sizes[name] = max(sizes.get(name, 0), -(-size * area // whole))
    return sum(sizes.values())


def memory_needed(graph: Graph, start: int, stop: int, weights: int, weights_in: str = ZIP) -> int:
    """Estimate the MB that running nodes [start, stop) in one piece takes, with so many bytes of fp32 weights."""
    largest = graph.once(_largest_maps, start)[stop - start - 1]
    copies = _FETCHED_COPIES if weights_in == FETCHED else _COPIES
    estimated = copies * weights + _LIVE_MAPS * FLOAT_BYTES * largest
    return WORKER_MB + max(estimated, _peak_as_it_is(graph, start, stop) + (copies - _COPIES) * weights) // MIB


def _peak_as_it_is(graph: Graph, start: int, stop: int) -> int:
    parts = filter(None, map(part_of, graph.nodes[start:stop]))
    return max((part.costs.peak_bytes for part in parts if part.costs), default=0)


def _largest_maps(graph: Graph, start: int) -> list[int]:
    return list(accumulate((graph.shape(node.output).elements for node in graph.nodes[start:]), max))
