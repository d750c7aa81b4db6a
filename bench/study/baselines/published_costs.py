"""The cost model of Gillis's program, and of MPHB's, which is built on it, with an exact search over it.

Coefficients are those of their files, for AWS Lambda (`partition/layer_runtime.cfg`, section [lambda], and
`layer_graph.py` of MincYu/gillis-open-source at 2244da4, the same in AlirezaAbedinii/MPHB-serverless-inference at
37fed57); the code is ours. A master computes a group of layers itself, or forks it over workers, one after the other,
and waits for the slowest:

    group on n workers = n encode(in) + slowest (decode(in) + layers + encode(out)) + calls(n) + n decode(out)

Milliseconds of an operator are linear in its multiply-accumulates or elements. Tiles have halos, and are as large as
the largest: rows and columns are rounded up. Their planners halve maps, along one axis or both, and spread the columns
of one fully connected layer over two or four functions. Weights that the master computes with are held against its
limit of memory, and those of a group against a worker's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import ceil, prod
from typing import Final

import numpy as np
from scipy import signal
from scipy.stats import exponnorm

from serfer.core.costs.cost_model import Floats
from serfer.core.errors import ModelError
from serfer.core.geometry import Grid
from serfer.core.units import MIB, MS_PER_S
from serfer.splitter.network.graph import Graph, Node
from serfer.splitter.planning.search import Chain, Edge, Goal, Search
from serfer.splitter.tiling.cuts import all_cuts, weight_bytes
from serfer.splitter.tiling.grids import ONE

Size = tuple[int, int]
_LINEAR_MS: Final = {
    "Conv": (0.000066, 0.703038),
    "Gemm": (0.0015, 2.58044859),
    "Relu": (0.00165758, 0.13902374),
    "MaxPool": (0.00417213, -0.3581939),
    "AveragePool": (0.00417213, -0.3581939),
    "BatchNormalization": (0.00142082, 0.27576228),
    "Add": (0.00260959, 0.09502701),
}
"""Milliseconds for 1,024 multiply-accumulates or elements, and of each operator; other kinds take no time."""
_ENCODE_MS, _DECODE_MS = 0.22, 0.16  # for 1,024 elements
_JOINED: Final = frozenset({"Flatten", "Relu", "BatchNormalization", "Dropout"})
"""Operators that are part of the layer before them."""
_CALL: Final = (2.765206182220345, 28.832586318285166, 0.9965843281779094)
_CALL_SLOPES: Final = (6.629996127305979e-07, 7.4112946016258187e-05, 2.1693192918679337e-06)
_ANSWER: Final = (2.7652061637888035, 28.832586317657142, 0.9965845859530119)
_ANSWER_SLOPES: Final = (-6.376711465017302e-09, 5.5936456142808507e-05, 1.054867186790225e-06)
"""Shape, location and scale of exponentially modified normals, of milliseconds, and what 1,024 elements add."""
_STEP_MS, _BOUND_MS = 2, 300
_PER = 1024
_STEP_MB = 25
_FREE: Final = frozenset({"GlobalAveragePool", "ReduceMean"})
"""Operators that take no time; those of _JOINED without coefficients do not, either."""


@dataclass(frozen=True)
class Prices:
    """What a program bills: a function is `usd_request` and `usd_ms` for each millisecond, in whole `round_ms`.

    A function holds `limit_mb` of weights; a group has at most `most_parts` parts.
    """

    name: str
    usd_ms: float
    usd_request: float
    round_ms: int
    limit_mb: int
    most_parts: int

    def usd(self, ms: Floats | float) -> Floats:
        billed = np.ceil(np.asarray(ms) / self.round_ms) * self.round_ms if self.round_ms else np.asarray(ms)
        return np.asarray(self.usd_request + self.usd_ms * billed)


GILLIS: Final = Prices("Gillis", 3008 / 1024 * 0.0000166667 / MS_PER_S, 0.0, 100, 1400, 4)
"""Its program counts milliseconds in hundreds, without a price for requests; dollars are AWS's for 3,008 MB."""
MPHB: Final = Prices("MPHB", (0.5 * 0.000016 + 2.048 * 0.000016 * 0.15) / MS_PER_S, 0.00000012, 0, 2048, 3)
"""Alibaba's prices as its program has them, for the 0.5 vCPU and 2,048 MB of its functions (`layer_graph.py`)."""


@dataclass(frozen=True)
class Group:
    """Layers [start, stop) on a grid; `here` says that the master computes part 0, or all of an undivided group."""

    start: int
    stop: int
    grid: Grid
    here: bool

    @property
    def workers(self) -> int:
        return self.grid.tiles - self.here


@dataclass(frozen=True)
class Priced:
    """A plan's groups, milliseconds, and dollars a query, and the megabytes of weights that its master holds."""

    groups: tuple[Group, ...]
    ms: float
    usd: float
    held_mb: float


@cache
def calls_ms(workers: int, given: float, taken: float) -> float:
    """Return the expected time of the slowest of some calls, from 1,024s of elements that each is given and returns.

    A call and its answer each take an exponentially modified normal time, of which one without elements is taken off.
    Density and distribution are sums over a grid of 2 ms, as in `LambdaCommLatency.getExp`.
    """
    at = np.arange(-_BOUND_MS, _BOUND_MS, _STEP_MS)

    def share(base: Sequence[float], slopes: Sequence[float], elements: float) -> Floats:
        shape, location, scale = (value + slope * elements for value, slope in zip(base, slopes, strict=True))
        return np.asarray(exponnorm(shape, location, scale).pdf(at) * _STEP_MS)

    both = signal.fftconvolve(share(_CALL, _CALL_SLOPES, given), share(_ANSWER, _ANSWER_SLOPES, taken), "same")
    mass = signal.fftconvolve(both, share(_CALL, _CALL_SLOPES, 0)[::-1], "same")
    return float(at @ (workers * mass * mass.cumsum() ** (workers - 1)))


class PublishedCosts:
    """A network's layers as Gillis's program has them, and the prices of groups of them.

    Raises ModelError for a network with a kind of operator that its coefficients lack, or whose images are not one
    tensor between layers.
    """

    def __init__(self, graph: Graph, prices: Prices) -> None:
        self.graph, self.prices = graph, prices
        self.ends = layer_ends(graph)
        self._known: dict[Group, tuple[float, float]] = {}

    @property
    def weights_mb(self) -> float:
        return self.mb(0, len(self.ends) - 1)

    def mb(self, start: int, stop: int) -> float:
        return weight_bytes(self.graph, self.ends[start], self.ends[stop]) / MIB

    def held_mb(self, group: Group) -> float:
        return self.mb(group.start, group.stop) / (group.grid.tiles if group.grid.columns else 1)

    def price(self, group: Group) -> tuple[float, float]:
        """Return the master's milliseconds for a group, and its workers' dollars."""
        if group not in self._known:
            self._known[group] = self._price(group)
        return self._known[group]

    def _price(self, group: Group) -> tuple[float, float]:
        given, taken, computing = self._part(group)
        if not group.workers:
            return computing, 0.0
        busy = _DECODE_MS * given + computing + _ENCODE_MS * taken
        moving = group.workers * (_ENCODE_MS * given + _DECODE_MS * taken)
        ms = moving + busy + calls_ms(group.workers, given, taken)
        return ms, group.workers * float(self.prices.usd(busy))

    def plan(self, groups: Sequence[Group]) -> Priced:
        prices = [self.price(group) for group in groups]
        ms, workers = sum(ms for ms, _ in prices), sum(usd for _, usd in prices)
        held = sum(self.held_mb(group) for group in groups if group.here)
        return Priced(tuple(groups), ms, workers + float(self.prices.usd(ms)), held)

    def _part(self, group: Group) -> tuple[float, float, float]:
        """Return 1,024s of elements that a part reads and writes, and the milliseconds of its operators."""
        nodes = self.graph.nodes[self.ends[group.start] : self.ends[group.stop]]
        read, written = self._input(group.start), nodes[-1].output
        if group.grid.columns or group.grid == ONE:
            share = group.grid.tiles
            computing = sum(
                _ms(node, _whole_work(self.graph, node) / (share if node.kind == "Gemm" else 1)) for node in nodes
            )
            return self._elements(read) / _PER, self._elements(written) / share / _PER, computing
        height, width = self.graph.shapes[written][2:]
        needs = {written: (ceil(height / group.grid.rows), ceil(width / group.grid.cols))}
        halved = group.grid.rows > 1, group.grid.cols > 1
        computing = 0.0
        for node in reversed(nodes):
            out = needs[node.output]
            before = _window(node, out, halved)
            computing += _ms(node, _tile_work(self.graph, node, out, before))
            for name in self.graph.activations(node):
                known = needs.get(name, (0, 0))
                needs[name] = max(known[0], before[0]), max(known[1], before[1])
        return self._elements(read, needs[read]) / _PER, self._elements(written, needs[written]) / _PER, computing

    def _input(self, layer: int) -> str:
        position = self.ends[layer]
        return self.graph.nodes[position - 1].output if position else self.graph.input

    def _elements(self, tensor: str, size: Size | None = None) -> int:
        shape = self.graph.shapes[tensor]
        return prod(shape) if size is None else shape[1] * size[0] * size[1]

    def can(self, group: Group) -> bool:
        nodes = self.graph.nodes[self.ends[group.start] : self.ends[group.stop]]
        if self.held_mb(group) > self.prices.limit_mb or group.grid.tiles > self.prices.most_parts:
            return False
        if group.grid.columns:
            return group.stop == group.start + 1 and nodes[0].kind == "Gemm"
        if group.grid == ONE:
            return True
        return all(node.kind in _LINEAR_MS and len(self.graph.shapes[node.output]) == 4 for node in nodes)  # noqa: PLR2004 - maps

    def groups(self) -> Iterator[Group]:
        grids = ONE, Grid(1, 2), Grid(2, 2), Grid(1, 2, columns=True), Grid(1, 4, columns=True)
        count = len(self.ends) - 1
        for start in range(count):
            for stop in range(start + 1, count + 1):
                for grid in grids:
                    for here in (False, True):
                        group = Group(start, stop, grid, here)
                        if self.can(group):
                            yield group

    def best(self, most_ms: float = float("inf")) -> Priced | None:
        """Return the plan with the least dollars within so many milliseconds, and of those the fastest; None for none.

        What the master holds is a state of the search where it cannot hold all weights, in steps of 25 MB, each group
        rounded up; their planners have steps of 100 MB.
        """
        return self._priced(self._search.best(Goal(self._value, most_seconds=most_ms)))

    def fastest(self) -> Priced | None:
        return self._priced(self._search.fastest)

    def _priced(self, chain: Chain | None) -> Priced | None:
        return self.plan([edge.stage for edge, _ in chain.steps if isinstance(edge.stage, Group)]) if chain else None

    def _value(self, ms: float, workers_usd: float) -> float:
        """Return a plan's dollars: the workers' add up along it, and the master is billed for all of its time."""
        return workers_usd + self.prices.usd(ms)  # type: ignore[return-value]  # arrays as well as numbers

    @cached_property
    def _search(self) -> Search:
        levels = 0 if self.weights_mb <= self.prices.limit_mb else self.prices.limit_mb // _STEP_MB
        edges = []
        for group in self.groups():
            ms, usd = (np.full((1, 1), value) for value in self.price(group))
            more = ceil(self.held_mb(group) / _STEP_MB) if group.here and levels else 0
            edges += [
                Edge((level, group.start), (level + more, group.stop), 0, 0, 0, ms, usd, group)
                for level in range(levels + 1 - more)
            ]
        count = len(self.ends) - 1
        return Search(edges, (0, 0), [(level, count) for level in range(levels + 1)], 1, 1)


def layer_ends(graph: Graph) -> list[int]:
    """Return the positions between their layers, both ends included.

    A layer is an operator with those after it that are elementwise, or a block with branches. Raises ModelError for a
    graph with other forms.
    """
    unknown = sorted({node.kind for node in graph.nodes} - {*_LINEAR_MS, *_JOINED, *_FREE})
    if unknown:
        raise ModelError(f"Gillis's program has no coefficients for {', '.join(unknown)}")
    ends, may_join = [0], False
    for start, stop in pairwise(cut.position for cut in all_cuts(graph) if len(cut.tensors) == 1):
        if may_join and graph.nodes[start].kind in _JOINED and stop == start + 1:
            ends[-1] = stop
        else:
            ends.append(stop)
            may_join = stop == start + 1
    return ends


def _ms(node: Node, work: float) -> float:
    slope, constant = _LINEAR_MS.get(node.kind, (0.0, 0.0))
    return max(0.0, slope * work / _PER + constant)


def _whole_work(graph: Graph, node: Node) -> float:
    """Return the work of an undivided operator; a convolution's rows and columns are not rounded down, as there."""
    given, taken = (graph.shapes[name] for name in (node.inputs[0], node.output))
    if node.kind == "Gemm":
        return prod(given) * prod(taken)
    if node.kind != "Conv":
        return prod(given)
    (down, across), pads, strides = (node.attributes[name] for name in ("kernel_shape", "pads", "strides"))
    rows = (given[2] + pads[0] + pads[2] - down) / strides[0] + 1
    cols = (given[3] + pads[1] + pads[3] - across) / strides[1] + 1
    return float(taken[1] * rows * cols * given[1] * down * across)


def _tile_work(graph: Graph, node: Node, out: Size, read: Size) -> float:
    given, taken = (graph.shapes[name] for name in (node.inputs[0], node.output))
    if node.kind == "Conv":
        down, across = node.attributes["kernel_shape"]
        return float(taken[1] * prod(out) * given[1] * down * across)
    return given[1] * prod(read)


def _window(node: Node, out: Size, halved: tuple[bool, bool]) -> Size:
    """Return what a tile reads: at the map's edges padding takes the place of some of it, at one edge of a half."""
    if "kernel_shape" not in node.attributes:
        return out
    kernel, strides, pads = (node.attributes[name] for name in ("kernel_shape", "strides", "pads"))
    padded = [pads[axis] + (0 if halved[axis] else pads[axis + 2]) for axis in (0, 1)]
    sizes = [(out[axis] - 1) * strides[axis] + kernel[axis] - padded[axis] for axis in (0, 1)]
    return sizes[0], sizes[1]
