"""The choice of cuts and grids.

Between two cuts lies a stage; its predicted time depends on its own operators and grid alone, so the best chain is
found exactly by a dynamic programme over (cut, number of stages).
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from serfer.core.aws import LambdaFacts
from serfer.core.cost import FLOAT_BYTES, Roofline, operator_seconds, stage_seconds, task_seconds
from serfer.core.errors import UsageError
from serfer.core.geometry import Grid, Rect, even_parts
from serfer.core.plan import PackageLimit
from splitter import operators
from splitter.cuts import Cut, weight_bytes
from splitter.global_pooling import with_grid
from splitter.graph import Graph, Node
from splitter.grids import ONE, GridChoice
from splitter.tiles import Regions, step_back, union, walk_back

MAX_STAGES = 16
_ROUNDING = 1 + 1e-9  # sums of the same seconds in another order differ by less


@dataclass(frozen=True)
class Storage:
    """How weights may be stored: those in `half` in fp16, `always` or where a stage would not fit otherwise.

    With `spread`, the columns of a fully connected layer may go to several functions.
    """

    half: frozenset[str] = frozenset()
    always: bool = False
    spread: bool = False


@dataclass(frozen=True)
class Choice:
    """A stage: nodes [start, stop) of the graph, on a grid; `seconds` is its predicted time.

    `half` says that its weights are stored in fp16 where they can be.
    """

    start: int
    stop: int
    grid: Grid
    seconds: float
    half: bool = False


@dataclass(frozen=True)
class Budget:
    """What the functions of a plan may be."""

    limit: PackageLimit
    memory_mb: int
    facts: LambdaFacts


@dataclass(frozen=True, order=True)
class _Score:
    """What a chain is judged by, in this order.

    How many of its weights lose precision, how much work that the grid asked for could spread stays on one tile, time,
    and, where work is what counts, multiply-accumulates over all tiles before time.
    """

    half_bytes: int = 0
    unspread_macs: int = 0
    macs: int = 0
    seconds: float = 0.0

    def __add__(self, other: _Score) -> _Score:
        return _Score(
            self.half_bytes + other.half_bytes,
            self.unspread_macs + other.unspread_macs,
            self.macs + other.macs,
            self.seconds + other.seconds,
        )


_Chains = dict[int, tuple[_Score, tuple[Choice, ...]]]


def choose(
    graph: Graph,
    cuts: Sequence[Cut],
    grids: GridChoice,
    stages: int | None,
    budget: Budget,
    storage: Storage | None = None,
    *,
    least_work: bool = False,
) -> list[Choice] | None:
    """Return the chain of stages between `cuts` with the least predicted latency that keeps the limits, or None.

    With `least_work` it is the chain with the fewest multiply-accumulates over all tiles instead. Raises UsageError for
    numbers that contradict each other.
    """
    stages = _stage_count(grids, stages)
    if stages is not None and stages > len(cuts) - 1:
        raise UsageError(f"the network can be cut into {len(cuts) - 1} stages at most, not {stages}")
    search = _Search(graph, tuple(cuts), budget, storage or Storage(), Roofline(), least_work)
    options = search.options(grids)
    best: list[_Chains] = [{0: (_Score(), ())}]
    for number in range(stages or min(MAX_STAGES, len(cuts) - 1)):
        best.append(_extend(best[-1], options, grids.per_stage[number : number + 1]))
    end = len(graph.nodes)
    ends = [step[end] for step in (best[stages:] if stages else best) if end in step]
    return list(min(ends, key=lambda chain: chain[0])[1]) if ends else None


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


@dataclass(frozen=True)
class _Spread:
    """A stage on a grid before anybody has asked whether it fits: its slowest tile's time, all tiles' work."""

    seconds: float
    macs: int


@dataclass(frozen=True)
class _Search:
    """Predicts every stage that a network allows."""

    graph: Graph
    cuts: tuple[Cut, ...]
    budget: Budget
    storage: Storage
    roofline: Roofline
    least_work: bool

    def options(self, grids: GridChoice) -> list[tuple[_Score, Choice]]:
        """Return every stage that fits the limits, on every grid that it may have, with its score.

        Where one grid is given for all stages, whatever it could spread and does not counts before time.
        """
        asked = {*(grids.per_stage or grids.options), *grids.for_large}
        tiled = {grid: self._spread(grid, thrifty=len(grids.options) > 1) for grid in asked - {ONE}}
        spreads = tiled.get(grids.wanted, {}) if grids.wanted else {}
        found = [
            (Choice(*ends, grid, part.seconds), part, 0)
            for grid, ends_parts in tiled.items()
            for ends, part in ends_parts.items()
        ]
        if grids.wanted or ONE in asked:
            found.extend(
                self._single(left, right, spreads)
                for left in self.cuts
                for right in self.cuts
                if left.position < right.position
            )
        return [scored for choice, part, unspread in found if (scored := self._fitted(choice, part, unspread))]

    def _fitted(self, choice: Choice, part: _Spread, unspread: int) -> tuple[_Score, Choice] | None:
        """Return a stage as it can be stored, with its score, or None where it cannot."""
        macs = part.macs if self.least_work else 0
        full = weight_bytes(self.graph, choice.start, choice.stop)
        if not self.storage.always and self._has_room(choice, full, ()):
            return _Score(0, unspread, macs, choice.seconds), choice
        less = weight_bytes(self.graph, choice.start, choice.stop, self.storage.half)
        if (self.storage.half or self.storage.always) and self._has_room(choice, less, self.storage.half):
            stored = Choice(choice.start, choice.stop, choice.grid, choice.seconds, half=True)
            return _Score(0 if self.storage.always else less, unspread, macs, choice.seconds), stored
        return None

    def _has_room(self, choice: Choice, size: int, half: Container[str]) -> bool:
        """Say whether each function of a stage with `size` bytes of weights fits, spread by its columns if need be."""
        room = self.budget.limit.room
        if size <= room or not (self.storage.spread and choice.grid.columns):
            return size <= room
        return _bytes_of_columns(self.graph, self.graph.nodes[choice.start : choice.stop], choice.grid, half) <= room

    def _seconds(self, compute_s: float, elements: int) -> float:
        return task_seconds(compute_s, FLOAT_BYTES * elements, self.budget.memory_mb, self.budget.facts)

    def _operator(self, node: Node, region: Rect) -> float:
        """Predict an operator's time for a region of its output."""
        shape = self.graph.shape(node.output)
        weights = sum(self.graph.weights[name].nbytes for name in self.graph.constants(node))
        share = region.area / shape.elements if operators.is_fully_connected(self.graph, node) else 1.0
        touched = FLOAT_BYTES * shape.channels * region.area + int(weights * share)
        return operator_seconds(operators.macs(self.graph, node, region.area), touched, self.roofline)

    @cached_property
    def _whole_seconds(self) -> list[float]:
        """Predicted seconds of the first n nodes, unsplit, for every n."""
        seconds = (self._operator(node, self.graph.shape(node.output).whole) for node in self.graph.nodes)
        return [0.0, *accumulate(seconds)]

    @cached_property
    def _whole_macs(self) -> list[int]:
        """Multiply-accumulates of the first n nodes, unsplit, for every n."""
        nodes = self.graph.nodes
        macs = (operators.macs(self.graph, node, self.graph.shape(node.output).whole.area) for node in nodes)
        return [0, *accumulate(macs)]

    @cached_property
    def _made_at(self) -> dict[str, int]:
        return {node.output: index for index, node in enumerate(self.graph.nodes)}

    @cached_property
    def _read_at(self) -> dict[str, list[int]]:
        read: dict[str, list[int]] = {}
        for index, node in enumerate(self.graph.nodes):
            for name in self.graph.activations(node):
                read.setdefault(name, []).append(index)
        return read

    def _single(self, left: Cut, right: Cut, spreads: dict[tuple[int, int], _Spread]) -> tuple[Choice, _Spread, int]:
        """Predict a stage on one tile, and how much of its work the grid asked for could have spread."""
        start, stop = left.position, right.position
        reads = [name for name in left.tensors if any(start <= at < stop for at in self._read_at.get(name, ()))]
        writes = [name for name in right.tensors if self._made_at[name] >= start]
        moved = sum(self.graph.shape(name).elements for name in (*reads, *writes))
        seconds = stage_seconds(self._seconds(self._whole_seconds[stop] - self._whole_seconds[start], moved), 1)
        links = [(one.position, two.position) for one, two in pairwise(self.cuts)]
        inside = [link for link in links if start <= link[0] and link[1] <= stop and link in spreads]
        unspread = sum(self._whole_macs[end] - self._whole_macs[begin] for begin, end in inside)
        return (
            Choice(start, stop, ONE, seconds),
            _Spread(seconds, self._whole_macs[stop] - self._whole_macs[start]),
            unspread,
        )

    def _spread(self, grid: Grid, *, thrifty: bool) -> dict[tuple[int, int], _Spread]:
        """Predict every stage (start, stop) that can be spread over `grid`.

        A `thrifty` search leaves out stages of which one tile computes as much as the whole.
        """
        graph = with_grid(self.graph, grid)
        spreads = [
            operators.by_columns(graph, node) if grid.columns else operators.tileable(graph, node)
            for node in graph.nodes
        ]
        found: dict[tuple[int, int], _Spread] = {}
        for cut in self.cuts[1:]:
            tiles = _targets(graph, cut, grid)
            if not tiles:
                continue
            walks = [self._walk(graph, spreads, cut, targets, thrifty=thrifty) for targets in tiles]
            for steps in zip(*walks, strict=False):
                macs = sum(step[2] for step in steps)
                seconds = stage_seconds(max(step[1] for step in steps), grid.tiles)
                found[steps[0][0], cut.position] = _Spread(seconds, macs)
        return found

    def _walk(
        self, graph: Graph, spreads: Sequence[bool], cut: Cut, targets: Regions, *, thrifty: bool
    ) -> Iterator[tuple[int, float, int]]:
        """Yield (start, seconds, work) of the tile that computes `targets`, for every start in one walk back."""
        at_cut = {other.position: other for other in self.cuts}
        regions: Regions = {}
        written, compute, macs = 0, 0.0, 0
        for index in range(cut.position - 1, -1, -1):
            node = graph.nodes[index]
            target = targets.get(node.output)
            blocked = node.output in cut.tensors and target is None
            pools_early = node.kind == operators.TILE_POOL and target is None
            if not spreads[index] or blocked or pools_early:
                return
            if target is not None:
                regions[node.output] = union(regions.get(node.output), target)
                written += graph.shape(node.output).channels * target.area
            step_back(graph, node, regions)
            compute += self._operator(node, regions[node.output])
            macs += operators.macs(graph, node, regions[node.output].area)
            whole = self._whole_seconds[cut.position] - self._whole_seconds[index]
            if thrifty and compute > whole * _ROUNDING:
                return
            if index in at_cut:
                needed = [name for name in at_cut[index].tensors if name in regions]
                read = sum(graph.shape(name).channels * regions[name].area for name in needed)
                yield index, self._seconds(compute, read + written), macs


def _bytes_of_columns(graph: Graph, nodes: Sequence[Node], grid: Grid, half: Container[str]) -> int:
    """Return the bytes of weights that the first (and largest) of a grid's groups of columns needs.

    Layers before the last fully connected one are computed whole by every group.
    """
    target = nodes[-1].output
    regions = walk_back(graph, nodes, {target: tile_rects(graph, target, grid)[0]})
    sizes: dict[str, int] = {}
    for node in nodes:
        area, whole = regions[node.output].area, graph.shape(node.output).whole.area
        for name in graph.constants(node):
            size = graph.weights[name].nbytes // (2 if name in half else 1)
            sizes[name] = max(sizes.get(name, 0), -(-size * area // whole))
    return sum(sizes.values())


def _targets(graph: Graph, cut: Cut, grid: Grid) -> list[Regions]:
    """Return what each tile of a stage that ends in `cut` has to compute: its part of every tensor that can be spread.

    Empty where the stage's own last tensor cannot be.
    """
    parts = {name: rects for name in cut.tensors if (rects := tile_rects(graph, name, grid))}
    if graph.nodes[cut.position - 1].output not in parts:
        return []
    return [{name: rects[number] for name, rects in parts.items()} for number in range(grid.tiles)]


def tile_rects(graph: Graph, tensor: str, grid: Grid) -> list[Rect]:
    """Return each tile's part of a tensor on a grid; none where it cannot be cut like that."""
    shape = graph.shape(tensor)
    if grid == ONE:
        return [shape.whole]
    if shape.flat != grid.columns or shape.height < grid.rows or shape.width < grid.cols:
        return []
    rows = even_parts(shape.height, grid.rows)
    return [Rect(row, col) for row in rows for col in even_parts(shape.width, grid.cols)]


def why_nothing_fits(
    graph: Graph, cuts: Sequence[Cut], grids: GridChoice, stages: int | None, budget: Budget, storage: Storage
) -> str:
    """Say in a line which bound is in the way of what was asked, and by how much."""
    endless = replace(budget, limit=PackageLimit(sys.maxsize, 0))
    choices = choose(graph, cuts, grids, stages, endless)
    if choices is None:
        return _why_no_chain(graph, cuts, grids, stages)
    spans = [(choice.start, choice.stop) for choice in choices]
    if stages is None and not grids.per_stage:  # whatever is not one part could still be cut
        spans = [(left.position, right.position) for left, right in pairwise(cuts)]
    sizes = [weight_bytes(graph, *span, storage.half) for span in spans]
    size = max(sizes)
    worst, limit = sizes.index(size), budget.limit
    nodes = graph.nodes[slice(*spans[worst])]
    heaviest = max(nodes, key=lambda node: sum(graph.weights[name].nbytes for name in graph.constants(node)))
    what = f"stage {worst} of {len(spans)}" if len(spans) == len(choices) else "a part that no cut divides"
    return (
        f"{what}, with operator {heaviest.name!r} ({heaviest.kind}), cannot be deployed: it has {size:,} bytes of "
        f"weights, a function has room for {limit.room:,} ({limit.package:,} less {limit.dependencies:,} of "
        f"dependencies), {size - limit.room:,} too few; allow more stages, --precision fp16, --gap or columns (col4), "
        "or for in-process workers only a higher --limit-mb"
    )


def _why_no_chain(graph: Graph, cuts: Sequence[Cut], grids: GridChoice, stages: int | None) -> str:
    blocked = next((node for node in graph.nodes if not operators.tileable(graph, node)), None)
    parts = f"{stages} stages" if stages else f"at most {MAX_STAGES} stages"
    wanted = ",".join(str(grid) for grid in grids.per_stage) or "any grid"
    reason = f"; from operator {blocked.name!r} ({blocked.kind}) on, stages have no tiles" if blocked else ""
    return f"the network has no chain of {parts} with grids {wanted} ({len(cuts) - 2} cuts){reason}"
