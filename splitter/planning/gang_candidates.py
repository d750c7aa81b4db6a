"""The gangs that a network may have: their grids, where their tiles exchange halos, where they begin and end.

- Grids: rows first, whose parts are contiguous; or the one that is wanted for all stages.
- A gang begins and ends at a cut of one tensor, which all before it has become.
- Inside, tiles exchange at the narrowest tensor before each window of several rows, and where they have pooled their
  shares; a stage passes fewer than MOST_WINDOWS such points without an exchange.
- The last stage may be on one tile, the head, if it makes all that crosses the cut behind it.
- One function holds all weights (`limits.py`), and has one memory size.

`gang_chains.py` finds the best exchanges inside every gang, `gang_prices.py` makes edges of the search of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from serfer.core.costs.cost_model import Platform
from serfer.core.geometry import Grid
from serfer.splitter.network.graph import WINDOWED, Graph, Node
from serfer.splitter.planning.gang_chains import GangStages
from serfer.splitter.planning.stage_costs import StageEnumerator, StageWork
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import Cut, all_cuts
from serfer.splitter.tiling.grids import ONE

GRIDS = (Grid(2, 1), Grid(3, 1), Grid(4, 1), Grid(2, 2), Grid(3, 3), Grid(4, 4))
"""Grids that gangs may have where the planner chooses."""
MOST_WINDOWS = 8
"""Points of exchange at most that a stage of a gang passes without one: by then its tiles are nearly all halo."""
_NOWHERE = -1


def gang_grids(wanted: Grid | None, width: int | None = None) -> tuple[Grid, ...]:
    """Return the grids that gangs may have where one is wanted for all stages; else those of `width` tiles at most."""
    if wanted is None:
        return tuple(grid for grid in GRIDS if width is None or grid.tiles <= width)
    return () if wanted == ONE or wanted.columns else (wanted,)


class GangCandidates:
    """Collects the stages that gangs on each of some grids consist of.

    `cuts` are those that stages may have; gangs begin and end at those of them that one tensor crosses. `spans` are the
    first node of gangs and the one after their last, on each grid.
    """

    def __init__(
        self,
        graph: Graph,
        cuts: Sequence[Cut],
        grids: Sequence[Grid],
        memory_mb: Sequence[int],
        platform: Platform,
        spans: Mapping[Grid, AbstractSet[tuple[int, int]]],
    ) -> None:
        self.cuts = [cut for cut in cuts if len(cut.tensors) == 1]
        self.spans = {grid: several for grid in grids if (several := spans[grid])}
        self.points = {cut.position: cut for cut in (exchange_points(graph) if grids else ())}
        self.stages = {grid: GangStages(graph, grid, memory_mb, platform) for grid in self.spans}
        self._inner = {*self.points, *(cut.position for cut in self.cuts)}
        self._ordered = [*self.points]
        self._made = {node.output: index for index, node in enumerate(graph.nodes)}

    def positions(self, grid: Grid) -> set[int]:
        if grid not in self.spans:
            return set()
        starts, stops = zip(*self.spans[grid], strict=True)
        return {position for position in self._inner if min(starts) <= position <= max(stops)}

    def takes(self, work: StageWork) -> bool:
        """Add a stage to those of gangs; return whether it is of use: if not, no longer one to the same stop is."""
        if self._windows_passed(work) >= MOST_WINDOWS:
            return False
        return work.start not in self._inner or self.stages[work.grid].add(work)

    def _windows_passed(self, work: StageWork) -> int:
        return bisect_left(self._ordered, work.stop) - bisect_right(self._ordered, work.start)

    def add_tails(self, enumerator: StageEnumerator, spreadable: Iterable[tuple[int, int]]) -> None:
        """Add last stages of gangs that run on one tile: such a stage makes every tensor of the cut after it.

        Stages that contain a `spreadable` span are left out: the requested grid could spread that work.
        """
        made, ends = self._made, {stop for spans in self.spans.values() for _, stop in spans}
        for left in self.points.values():
            for right in [cut for cut in self.cuts if cut.position in ends]:
                spread = any(left.position <= first and last <= right.position for first, last in spreadable)
                whole = right.position > left.position and all(made[name] >= left.position for name in right.tensors)
                if whole and not spread:
                    work = enumerator.whole(left, right)
                    for stages in self.stages.values():
                        stages.add_tail(work)


def exchange_points(graph: Graph) -> list[Cut]:
    """Return the cuts inside a gang: the narrowest tensor before each window of several rows, and pooled shares.

    Any number of tensors may cross: those that stay where they are cost nothing.
    """
    cuts = {cut.position: cut for cut in all_cuts(graph, len(graph.nodes))}
    made = {node.output: index for index, node in enumerate(graph.nodes)}
    wanted = set()
    for index, node in enumerate(graph.nodes):
        if node.kind == operators.TILE_POOL:
            wanted.add(index + 1)
        elif _is_window(node) and operators.tileable(graph, node):
            wanted.add(made.get(_narrowest(graph, made, node.inputs[0]), _NOWHERE) + 1)
    return [cuts[position] for position in sorted(wanted - {0, len(graph.nodes)}) if position in cuts]


def _is_window(node: Node) -> bool:
    return node.kind in WINDOWED and max(node.attributes.get("kernel_shape", (1,))) > 1


def _narrowest(graph: Graph, made: Mapping[str, int], tensor: str) -> str:
    least = tensor
    while tensor in made:
        node = graph.nodes[made[tensor]]
        sources = graph.activations(node)
        if _is_window(node) or len(sources) != 1 or node.kind in (operators.TILE_POOL, operators.TILE_SUM):
            break
        tensor = sources[0]
        if graph.shape(tensor).flat or not operators.tileable(graph, node):
            break
        if graph.shape(tensor).elements < graph.shape(least).elements:
            least = tensor
    return least
