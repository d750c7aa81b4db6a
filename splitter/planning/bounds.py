"""Lower bounds of chains, which say what need not be searched: most networks are best as one function.

A step of a chain, a stage or a gang, is one invocation. Its tiles together compute at least the operators' work that no
partition saves (`Profiles.least`), and its slowest task takes at least the mean of its tasks. A chain with a certain
step therefore takes at least:

- the step itself, with its work divided evenly among its tasks,
- one step for everything before it and one for everything after it, each on its best number of tiles,
- of all transfers, the answer to the driver and one tensor from each step to the next, at a function's bandwidth.

Steps are priced as the search prices them. Transfers are divided evenly among tasks, except a last operator that no
tile can have a part of, such as a part that runs as it is: one task moves its result alone.

If the network as one function beats this bound, no chain with that step is the best for any weighting of seconds and
dollars, for their product, or within a goal's limits, so the search leaves the step out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.cost_model import Floats, GangEnds, Platform, StageLoad, billed_usd, gang_price, stage_price
from serfer.core.costs.operator_costs import Profiles
from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.geometry import Grid, Rect, Span
from serfer.core.units import FLOAT_BYTES, MS_PER_S
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.planning.limits import Fit
from serfer.splitter.planning.ort_kernels import operator_work
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.receptive_field import clipped
from serfer.splitter.tiling.regions import AxisInput, AxisNode, axis_node
from serfer.splitter.tiling.tiling_rule import extent

_SAME = 1e-9  # relative: what is beaten by less is searched
_FEW = 4  # operators, the last ones: reshaping, behind a part that runs as it is
_Spans = Sequence[tuple[int, int]]
_Work = NDArray[np.float64]
"""Serial and parallel seconds on one vCPU of the first n nodes, for every n: an array (2, nodes + 1)."""


@dataclass(frozen=True)
class OneFunction:
    """The network as one function: what it takes and costs, for each memory. `convex`: see `beats`."""

    seconds: Floats
    usd: Floats
    convex: bool

    def beats(self, seconds: Floats, usd: Floats) -> NDArray[np.bool_]:
        """Return which chains, of which these are bounds, cannot be better.

        That is for any goal where some memory beats both bounds; and for goals without limits also where the line
        between two memories does (`convex`): the best chain is then at a corner of the convex hull of all chains.
        """
        fast, cheap = self._corners()
        if self.convex:
            least_usd = np.interp(seconds, fast, cheap)
        else:
            least_usd = cheap[np.searchsorted(fast, seconds, "right").clip(1) - 1]
        return np.asarray((seconds > fast[0] * (1 + _SAME)) & (usd > least_usd * (1 + _SAME)))

    def _corners(self) -> tuple[Floats, Floats]:
        """Return the points that nothing beats, the fastest first: with `convex` those of the convex hull."""
        points: list[tuple[float, float]] = []
        for point in sorted(zip(self.seconds.tolist(), self.usd.tolist(), strict=True)):
            if points and point[1] >= points[-1][1]:
                continue
            while self.convex and len(points) > 1 and _is_above(points[-1], points[-2], point):
                points.pop()
            points.append(point)
        fast, cheap = np.array(points).T
        return fast, cheap


def _is_above(middle: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])


class StepBounds:
    """Least seconds and dollars of chains that have a certain step; arrays have a row for each span of nodes.

    Steps have one of `memory_mb`, and as many tasks as one of `counts`, or one.
    """

    def __init__(
        self, graph: Graph, profiles: Profiles, platform: Platform, memory_mb: Sequence[int], counts: Iterable[int]
    ) -> None:
        store = replace(platform.store, price_byte=0.0)  # another path may have none
        self._platform, self._count = replace(platform, store=store, objects=None), len(graph.nodes)
        made = [0, *(graph.shape(node.output).elements for node in graph.nodes)]
        self._written = FLOAT_BYTES * np.array([*made[:-1], 0], dtype=float)
        self._answer = FLOAT_BYTES * float(sum(graph.shape(name).elements for name in graph.outputs))
        self._memory = np.array(memory_mb, dtype=float)
        parts = _least_parts(graph, profiles)
        tiled = np.array([operators.tileable(graph, node) for node in graph.nodes])
        flat = np.array([graph.shape(node.output).flat for node in graph.nodes])
        by_columns = np.array([operators.column_splittable(graph, node) for node in graph.nodes])
        spread = flat & by_columns
        whole = np.flatnonzero(~(tiled | by_columns))  # columns' tasks may each compute the maps before them
        self._last_whole = int(whole[-1]) if len(whole) and self._count - whole[-1] <= _FEW else self._count
        self._by_rows = _before(parts, tiled)
        self._by_columns = _before(parts, spread)
        self._by_either = _before(parts, tiled | spread)
        self._counts = sorted({1, *counts})

    def stages(self, spans: _Spans, grid: Grid) -> tuple[Floats, Floats]:
        """Return the bounds of chains that have a stage of such nodes on a grid: arrays (spans, memories)."""
        work = self._by_columns if grid.columns else self._by_rows
        return self._with_sides(spans, self._stages(work, spans, grid.tiles))

    def gangs(self, spans: _Spans, grid: Grid) -> tuple[Floats, Floats]:
        granted = vcpus(self._memory, self._platform.functions.memory_per_vcpu)
        serial, parallel = _of(self._by_rows, spans, grid.tiles)
        none = np.zeros((len(spans), 1, grid.tiles))
        by_one = np.array([start <= self._last_whole < stop for start, stop in spans], dtype=bool)
        ends = GangEnds.of(self._load(none, none, spans, by_one), self._platform)
        inside = compute_seconds(serial, parallel, granted) + ends.reading_s + ends.writing_s
        seconds, usd = gang_price(grid.tiles, inside, ends.carrying_s, 0.0, self._memory, self._platform)
        return self._with_sides(spans, (seconds, usd + self._starts_usd(grid.tiles)))

    def _stages(
        self, work: tuple[_Work, _Work], spans: _Spans, tasks: int, *, handed_by_one: bool = False
    ) -> tuple[Floats, Floats]:
        """Bills are of whole milliseconds, each rounded up, so uneven ones may be up to one less for each task."""
        serial, parallel = (np.repeat(sums[:, :, None], tasks, axis=-1) for sums in _of(work, spans, tasks))
        by_one = np.full(len(spans), handed_by_one)
        seconds, usd = stage_price(self._load(serial, parallel, spans, by_one), self._memory[:, None], self._platform)
        rounded = tasks * billed_usd(self._memory, 1 / MS_PER_S, self._platform.functions)
        return seconds, usd - rounded + self._starts_usd(tasks)

    def _starts_usd(self, tasks: int) -> Floats:
        usd = Fit((), half=False, weight_bytes=0).starts_usd(tasks, self._memory, self._platform, 0)
        return np.zeros(len(self._memory)) if usd is None else usd

    def _load(self, serial: Floats, parallel: Floats, spans: _Spans, by_one: NDArray[np.bool_]) -> StageLoad:
        """Return the load of tasks that divide evenly what steps of such nodes move, or one of which moves it all."""
        tasks, stops = parallel.shape[-1], np.array([stop for _, stop in spans])
        shares = np.where(by_one[:, None, None], np.eye(1, tasks), 1 / tasks)
        moved, answer = (
            sent[:, None, None] * shares for sent in (self._written[stops], (stops == self._count) * self._answer)
        )
        none = np.zeros(tasks)
        return StageLoad(serial, parallel, moved, none, none, none, answer)  # moved, with no request for it

    def _with_sides(self, spans: _Spans, own: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        before = self._sides([(0, start) for start, _ in spans])
        after = self._after([stop for _, stop in spans])
        seconds, usd = (
            step + left[:, None] + right[:, None] for step, left, right in zip(own, before, after, strict=True)
        )
        return seconds, usd

    def _after(self, starts: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the least that what begins at such nodes takes, and the least that it costs.

        Of the last operator that no tile can have a part of, one task has the result: it hands on the answer, or what
        a step behind it reads.
        """
        stop, inside = self._count, range(self._last_whole + 1, self._count)
        before = [start <= self._last_whole < stop for start in starts]
        least = np.array(self._sides([(start, stop) for start in starts]))
        if not any(before):
            return least[0], least[1]
        ways = [self._sides([(start, stop) for start in starts], handed_by_one=True)]
        for end in inside:
            rest = self._sides([(end, stop)])
            until = self._sides([(min(start, end), end) for start in starts], handed_by_one=True)
            ways.append((until[0] + rest[0], until[1] + rest[1]))
        seconds, usd = np.where(before, np.maximum(least, np.min(ways, axis=0)), least)
        return seconds, usd

    def _sides(self, spans: _Spans, *, handed_by_one: bool = False) -> tuple[Floats, Floats]:
        """Return the least that any chain of such nodes takes, and the least that it costs; nothing where none are."""
        different = sorted(set(spans))
        least = np.full((2, len(different)), np.inf)
        for tasks in self._counts:
            priced = self._stages(self._by_either, different, tasks, handed_by_one=handed_by_one)
            least = np.minimum(least, [figures.min(axis=-1) for figures in priced])
        least[:, [start == stop for start, stop in different]] = 0.0
        number = {span: index for index, span in enumerate(different)}
        seconds, usd = least[:, [number[span] for span in spans]]
        return seconds, usd


def _of(work: tuple[_Work, _Work], spans: _Spans, tasks: int) -> tuple[Floats, Floats]:
    """Return serial and parallel seconds of each task of such nodes, columns: what is spread, and what is not."""
    starts, stops = np.array(spans).reshape(-1, 2).T
    spread, whole = (sums[:, stops] - sums[:, starts] for sums in work)
    serial, parallel = spread / tasks + whole
    return serial[:, None], parallel[:, None]


def _before(parts: Floats, able: NDArray[np.bool_]) -> tuple[_Work, _Work]:
    """Return the work of the first n nodes that several tiles can share, and that every one of them does."""
    spread, whole = (np.where(chosen, parts, 0.0).cumsum(axis=1) for chosen in (able, ~able))
    return np.pad(spread, ((0, 0), (1, 0))), np.pad(whole, ((0, 0), (1, 0)))


def _least_parts(graph: Graph, profiles: Profiles) -> Floats:
    """Return serial and parallel seconds of each operator that all tiles of any partition take: an array (2, nodes)."""
    rows, cols = (_least_extents(graph, axis) for axis in (ROW_AXIS, COL_AXIS))
    adds_up = _Reading()
    parts = []
    for node in graph.nodes:
        region = Rect(Span(0, rows[node.output]), Span(0, cols[node.output]))
        work = operator_work(graph, node, region) if region.area else None
        if work is None or node.kind in (operators.TILE_POOL, operators.TILE_SUM):
            parts.append((0.0, 0.0))  # such tiles' shares depend on the grid, and are small
            continue
        sides = ((ROW_AXIS, region.rows.size), (COL_AXIS, region.cols.size))
        reads = all(adds_up(axis_node(graph, node, axis), size) for axis, size in sides)
        parts.append(profiles.least(work if reads else replace(work, read=0)))
    return np.array(parts).T


class _Reading:
    """Whether all tiles of any partition of an operator's output read at least what one tile of its size does."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, int, int], bool] = {}

    def __call__(self, node: AxisNode, rows: int) -> bool:
        return all(self._adds_up(read, rows) for read in node.inputs.values())

    def _adds_up(self, read: AxisInput, rows: int) -> bool:
        key = read.field, read.size, rows
        if key not in self._known:
            count = np.arange(1, rows + 1)
            spans = clipped(read.field(np.array([np.zeros_like(count), count])), read.size)
            lengths = spans[1] - spans[0]
            self._known[key] = bool((lengths * rows >= lengths[-1] * count).all())
        return self._known[key]


def _least_extents(graph: Graph, axis: int) -> dict[str, int]:
    """Windows that are shorter than their stride leave rows out, which a tile has only between two of its own."""
    least = dict.fromkeys((name for node in graph.nodes for name in (*graph.activations(node), node.output)), 0)
    least |= {name: extent(graph, name, axis) for name in graph.outputs}
    known: dict[tuple[object, int, int], tuple[int, int]] = {}
    for node in reversed(graph.nodes):
        along = axis_node(graph, node, axis)
        unread = along.size - least[node.output]
        for source, read in along.inputs.items():
            key = read.field, along.size, read.size
            if key not in known:
                known[key] = _rows_read(along.size, read)
            count, longest = known[key]
            least[source] = max(least[source], count - unread * longest)
    return least


def _rows_read(size: int, read: AxisInput) -> tuple[int, int]:
    """Return how many rows of an input all of `size` rows of the output read, and how many one of them does at most."""
    each = np.arange(size)
    rows = clipped(read.field(np.array([each, each + 1])), read.size)
    change = np.zeros(read.size + 1, dtype=int)
    np.add.at(change, rows[0], 1)
    np.subtract.at(change, rows[1], 1)
    return int((change[:-1].cumsum() > 0).sum()), int((rows[1] - rows[0]).max())
