"""Where a network can be cut, and the choice of cuts and grids.

A cut may fall wherever one tensor separates what comes before from what comes after. Between two cuts lies a stage; its
predicted time depends on its own operators and grid alone, so the best chain is found exactly by a dynamic programme
over (cut, number of stages).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from serfer.core.aws import LambdaFacts
from serfer.core.cost import FLOAT_BYTES, Roofline, operator_seconds, task_seconds
from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Grid, Rect, grid_rects
from splitter import operators
from splitter.graph import Graph, Node
from splitter.grids import ONE, GridChoice
from splitter.tiles import Regions, step_back

MAX_STAGES = 16
_CUT_RANKS = (2, 4)  # a vector or a map: what a plan's shapes can say


@dataclass(frozen=True)
class Limits:
    """What a stage's function may be: `package_bytes` unzipped, of which `dependency_bytes` are not weights."""

    package_bytes: int
    dependency_bytes: int
    memory_mb: int

    @property
    def weight_bytes(self) -> int:
        """Bytes that are left for weights."""
        return self.package_bytes - self.dependency_bytes


@dataclass(frozen=True)
class Choice:
    """A stage: nodes [start, stop) of the graph, on a grid; `seconds` is its predicted time."""

    start: int
    stop: int
    grid: Grid
    seconds: float


def cut_points(graph: Graph) -> list[int]:
    """Return the positions between nodes where one tensor separates the graph, the two ends included.

    Position p lies before node p. A cut between an operator and a pointwise one that follows it is left out: the cut
    after both moves as many bytes and fuses better.
    """
    last_use = {name: index for index, node in enumerate(graph.nodes) for name in graph.activations(node)}
    live = {graph.input}
    points = [0]
    for index, node in enumerate(graph.nodes[:-1]):
        live = {name for name in (*live, node.output) if last_use.get(name, -1) > index}
        alone = live == {node.output} and len(graph.shapes[node.output]) in _CUT_RANKS
        if alone and graph.nodes[index + 1].kind not in operators.POINTWISE:
            points.append(index + 1)
    return [*points, len(graph.nodes)]


@dataclass(frozen=True, order=True)
class _Score:
    """What a chain is judged by: first how much work that a given grid could spread stays on one tile, then time."""

    unspread_macs: int = 0
    seconds: float = 0.0

    def __add__(self, other: _Score) -> _Score:
        return _Score(self.unspread_macs + other.unspread_macs, self.seconds + other.seconds)


_Chains = dict[int, tuple[_Score, tuple[Choice, ...]]]


def choose(graph: Graph, grids: GridChoice, stages: int | None, limits: Limits, facts: LambdaFacts) -> list[Choice]:
    """Return the chain of stages with the least predicted latency that keeps the limits.

    Raises UsageError for numbers that contradict each other, ModelError where no chain fits; it says
    what is in the way.
    """
    stages = _stage_count(grids, stages)
    points = cut_points(graph)
    if stages is not None and stages > len(points) - 1:
        raise UsageError(f"the network can be cut into {len(points) - 1} stages at most, not {stages}")
    _check_fits(graph, points, limits)
    options = _Predictor(graph, points, limits, facts, Roofline()).options(grids)
    best: list[_Chains] = [{0: (_Score(), ())}]
    for number in range(stages or MAX_STAGES):
        best.append(_extend(best[-1], options, grids.per_stage[number : number + 1]))
    ends = [step[points[-1]] for step in (best[stages:] if stages else best) if points[-1] in step]
    if not ends:
        raise ModelError(_why_nothing_fits(graph, points, grids, stages))
    return list(min(ends, key=lambda end: end[0])[1])


def _stage_count(grids: GridChoice, stages: int | None) -> int | None:
    if stages is not None and not 1 <= stages <= MAX_STAGES:
        raise UsageError(f"stages must be between 1 and {MAX_STAGES}, not {stages}")
    if not grids.per_stage:
        return stages
    if stages not in (None, len(grids.per_stage)) or len(grids.per_stage) > MAX_STAGES:
        raise UsageError(f"{len(grids.per_stage)} grids do not fit {stages or f'at most {MAX_STAGES}'} stages")
    return len(grids.per_stage)


def _extend(best: _Chains, options: Sequence[tuple[_Score, Choice]], wanted: tuple[Grid, ...]) -> _Chains:
    """Add one more stage to every chain, keeping the best chain to each cut."""
    longer: _Chains = {}
    for score, option in options:
        if option.start not in best or (wanted and option.grid not in wanted):
            continue
        so_far, chain = best[option.start]
        total = so_far + score
        if option.stop not in longer or total < longer[option.stop][0]:
            longer[option.stop] = (total, (*chain, option))
    return longer


def weight_bytes(graph: Graph, nodes: Sequence[Node]) -> int:
    """Return the bytes of the constants that `nodes` read, each counted once."""
    return sum(graph.weights[name].nbytes for name in {name for node in nodes for name in graph.constants(node)})


@dataclass(frozen=True)
class _Predictor:
    """Predicts every stage that a network allows."""

    graph: Graph
    points: Sequence[int]
    limits: Limits
    facts: LambdaFacts
    roofline: Roofline

    def options(self, grids: GridChoice) -> list[tuple[_Score, Choice]]:
        """Return every stage that fits the limits, on every grid that it may have, with its score.

        Where one grid is given for all stages, whatever it could spread and does not counts before time.
        """
        tiled = {grid: self._tiled(grid) for grid in (set(grids.per_stage or grids.options) - {ONE})}
        given = not grids.per_stage and len(grids.options) == 1
        spreads = tiled[grids.options[0]] if given and tiled else {}
        stages = [Choice(*ends, grid, seconds) for grid, found in tiled.items() for ends, seconds in found.items()]
        scored = [(_Score(0, stage.seconds), stage) for stage in stages]
        if given or ONE in (grids.per_stage or grids.options):
            scored.extend(
                self._single(start, stop, spreads) for start in self.points for stop in self.points if start < stop
            )
        return [(score, stage) for score, stage in scored if self._fits(stage)]

    def _fits(self, stage: Choice) -> bool:
        return weight_bytes(self.graph, self.graph.nodes[stage.start : stage.stop]) <= self.limits.weight_bytes

    def _seconds(self, compute_s: float, elements: int) -> float:
        return task_seconds(compute_s, FLOAT_BYTES * elements, self.limits.memory_mb, self.facts)

    def _operator(self, node: Node, region: Rect) -> float:
        """Predict an operator's time for a region of its output."""
        elements = self.graph.shape(node.output).channels * region.area
        touched = FLOAT_BYTES * elements + weight_bytes(self.graph, [node])
        return operator_seconds(operators.macs(self.graph, node, region.area), touched, self.roofline)

    def _single(self, start: int, stop: int, spreads: dict[tuple[int, int], float]) -> tuple[_Score, Choice]:
        """Predict a stage on one tile."""
        graph, nodes = self.graph, self.graph.nodes[start:stop]
        compute = sum(self._operator(node, graph.shape(node.output).whole) for node in nodes)
        moved = graph.shape(graph.activations(nodes[0])[0]).elements + graph.shape(nodes[-1].output).elements
        seconds = self._seconds(compute, moved)
        links = [link for link in pairwise(self.points) if start <= link[0] and link[1] <= stop and link in spreads]
        unspread = sum(
            operators.macs(graph, node, graph.shape(node.output).whole.area)
            for link in links
            for node in graph.nodes[slice(*link)]
        )
        return _Score(unspread, seconds), Choice(start, stop, ONE, seconds)

    def _tiled(self, grid: Grid) -> dict[tuple[int, int], float]:
        """Predict the slowest tile's time of every stage (start, stop) that can be spread over `grid`."""
        found = {}
        for stop in self.points[1:]:
            target = self.graph.shape(self.graph.nodes[stop - 1].output)
            if target.flat or target.height < grid.rows or target.width < grid.cols:
                continue
            walks = [self._walk(stop, region) for region in grid_rects(target.height, target.width, grid)]
            for steps in zip(*walks, strict=True):
                found[steps[0][0], stop] = max(seconds for _, seconds in steps)
        return found

    def _walk(self, stop: int, region: Rect) -> Iterator[tuple[int, float]]:
        """Yield (start, seconds) of the tile that ends in `region` for every start: one walk back serves all."""
        graph, cuts = self.graph, set(self.points)
        regions: Regions = {graph.nodes[stop - 1].output: region}
        written = graph.shape(graph.nodes[stop - 1].output).channels * region.area
        compute = 0.0
        for index in range(stop - 1, -1, -1):
            node = graph.nodes[index]
            if not operators.tileable(graph, node):
                return
            compute += self._operator(node, regions[node.output])
            step_back(graph, node, regions)
            if index in cuts:
                source = graph.activations(node)[0]
                read = graph.shape(source).channels * regions[source].area
                yield index, self._seconds(compute, read + written)


def _check_fits(graph: Graph, points: Sequence[int], limits: Limits) -> None:
    """Refuse a network with a part that no stage can hold."""
    for start, stop in pairwise(points):
        nodes = graph.nodes[start:stop]
        size = weight_bytes(graph, nodes)
        if size > limits.weight_bytes:
            heaviest = max(nodes, key=lambda node: weight_bytes(graph, [node]))
            raise ModelError(
                f"operator {heaviest.name!r} ({heaviest.kind}) cannot be deployed: its stage has {size:,} bytes of "
                f"weights, "
                f"a function has room for {limits.weight_bytes:,} ({limits.package_bytes:,} less "
                f"{limits.dependency_bytes:,} of dependencies), {size - limits.weight_bytes:,} too few; raise "
                "--limit-mb to split it for in-process workers only"
            )


def _why_nothing_fits(graph: Graph, points: Sequence[int], grids: GridChoice, stages: int | None) -> str:
    blocked = next((node for node in graph.nodes if not operators.tileable(graph, node)), None)
    parts = f"{stages} stages" if stages else f"at most {MAX_STAGES} stages"
    wanted = ",".join(str(grid) for grid in grids.per_stage) or "any grid"
    reason = f"; from operator {blocked.name!r} ({blocked.kind}) on, stages have one tile" if blocked else ""
    return (
        f"no chain of {parts} with grids {wanted} fits the network ({len(points) - 2} cuts){reason} "
        "and the package limit"
    )
