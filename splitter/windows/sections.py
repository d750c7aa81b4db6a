"""Where a network that is computed in passes is cut: what each pass reads in place of the image, and what it keeps.

pass 0    image ─────────────────────▶ statistics of pass 0, kept map a
pass 1    a, statistics of pass 0 ───▶ statistics of pass 1
map       a, statistics of both ─────▶ the map

Without kept maps each pass computes from the image all that lies before its statistics. What is cheaper is a minimum
cut: of the operators before its targets a pass computes some, and reads what these need of the others. A pass cannot
read what depends on statistics of the pass before, since only a later one computes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from serfer.splitter.network.graph import MAP_RANK, NCHW, STATISTICS, Graph, Node

_NEVER = 1 << 62


@dataclass(frozen=True)
class Section:
    """The part of a network that a pass computes: it reads maps in place of the image, and keeps maps for later ones.

    With nothing in `reads` it reads the image.
    """

    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prices:
    """What a pass pays over a whole image, in any unit: for an operator, to read a map, and to keep one."""

    compute: Callable[[Node], float]
    read: Callable[[str], float]
    keep: Callable[[str], float]


def read_maps(graph: Graph) -> tuple[str, ...]:
    """Return the maps that a part of a network reads, the image or others, in the order of its operators."""
    made = {node.output for node in graph.nodes} | {STATISTICS}
    return tuple(dict.fromkeys(name for node in graph.nodes for name in graph.activations(node) if name not in made))


def sections_of(graph: Graph, count: int, prices: Prices) -> tuple[Section, ...]:
    """Return the cheapest sections of a network with statistics: of its `count` passes, and of the map, which is last.

    They are found from the last one on, as it is the later ones that need what an earlier one keeps.
    """
    depths = _depths(graph)
    keeps: list[list[str]] = [[] for _ in range(count + 1)]
    sections = list[Section]()
    for number in reversed(range(count + 1)):
        sources = [statistic.source for statistic in graph.statistics if statistic.number == number]
        targets = [*graph.outputs] if number == count else [*sources, *keeps[number]]
        kept = {name for names in keeps for name in names}  # for a pass behind this one
        earlier = {
            name: prices.read(name) + (0.0 if name in kept else prices.keep(name))
            for name, depth in depths.items()
            if depth < number and name not in targets and _can_be_kept(graph, name)
        } | {graph.input: prices.read(graph.input)}
        reads = _cheapest(graph, targets, earlier, prices.compute)
        if reads == [graph.input]:
            reads = []
        for name in reads:
            if name != graph.input and name not in keeps[depths[name]]:
                keeps[depths[name]].append(name)
        sections.append(Section(tuple(reads), tuple(keeps[number])))
    return tuple(reversed(sections))


def _depths(graph: Graph) -> dict[str, int]:
    depths = {graph.input: 0}
    for node in graph.nodes:
        before = [depths[name] for name in graph.activations(node) if name != STATISTICS]
        if STATISTICS in node.inputs:
            start = int(graph.weights[node.inputs[1]].reshape(-1)[0])
            before.append(next(statistic.number + 1 for statistic in graph.statistics if start < statistic.values.stop))
        depths[node.output] = max(before)
    return depths


def _can_be_kept(graph: Graph, tensor: str) -> bool:
    plain = len(graph.shapes[tensor]) == MAP_RANK and graph.axes(tensor) == NCHW
    return plain and tensor not in graph.fixed and tensor not in graph.others


def _cheapest(
    graph: Graph, targets: Sequence[str], earlier: Mapping[str, float], compute: Callable[[Node], float]
) -> list[str]:
    """Return what is read, of the image and of maps that were computed `earlier` at a price, to compute some targets.

    In the network of the cut an activation has two vertices: (name, "needed"), and (name, "computed"), from which its
    operator's price leads to the sink. What is needed and not computed is read; what is computed needs its inputs.
    """
    flow = _Flow()
    flow.add((graph.input, "needed"), (graph.input, "computed"), _NEVER)
    flow.add((graph.input, "computed"), _SINK, _whole(earlier[graph.input]))
    for node in graph.nodes:
        name = node.output
        if name in graph.fixed:
            continue
        flow.add((name, "needed"), (name, "computed"), _whole(earlier[name]) if name in earlier else _NEVER)
        flow.add((name, "computed"), _SINK, _whole(compute(node)))
        for read in graph.activations(node):
            if read not in graph.fixed:
                flow.add((name, "computed"), (read, "needed"), _NEVER)
    for name in targets:
        flow.add(_SOURCE, (name, "needed"), _NEVER)
    reached = flow.cut()
    names = [graph.input, *(node.output for node in graph.nodes)]
    return [
        name
        for name in names
        if (name, "needed") in reached and ((name, "computed") not in reached or name == graph.input)
    ]


def _whole(price: float) -> int:
    return 1 + round(price * 1e12)


_Vertex = tuple[str, str]
_SOURCE, _SINK = ("", "source"), ("", "sink")


@dataclass
class _Flow:
    """A network of capacities, and its largest flow from _SOURCE to _SINK by shortest paths (Edmonds and Karp 1972)."""

    left: dict[_Vertex, dict[_Vertex, int]] = field(default_factory=dict)

    def add(self, start: _Vertex, end: _Vertex, capacity: int) -> None:
        self.left.setdefault(start, {})[end] = self.left.get(start, {}).get(end, 0) + capacity
        self.left.setdefault(end, {}).setdefault(start, 0)

    def cut(self) -> set[_Vertex]:
        while _SINK in (before := self._before()):
            path, end = list[tuple[_Vertex, _Vertex]](), _SINK
            while end != _SOURCE:
                path.append((before[end], end))
                end = before[end]
            least = min(self.left[start][end] for start, end in path)
            for start, end in path:
                self.left[start][end] -= least
                self.left[end][start] += least
        return {*before}

    def _before(self) -> dict[_Vertex, _Vertex]:
        before: dict[_Vertex, _Vertex] = {_SOURCE: _SOURCE}
        queue = deque[_Vertex]([_SOURCE])
        while queue and _SINK not in before:
            vertex = queue.popleft()
            for end, capacity in self.left[vertex].items():
                if capacity and end not in before:
                    before[end] = vertex
                    queue.append(end)
        return before
