"""The cuts of a network: positions where one tensor, or a few, separate the operators before and after."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

from serfer.core.errors import UsageError
from serfer.splitter.network.graph import POINTWISE, Graph
from serfer.splitter.tiling import operators

MOST_TENSORS = 4
"""How many tensors may cross a cut."""


@dataclass(frozen=True)
class Cut:
    """A position between nodes (before node `position`) and the tensors that are computed there and read later."""

    position: int
    tensors: tuple[str, ...]


def all_cuts(graph: Graph, most_tensors: int = MOST_TENSORS) -> list[Cut]:
    """Return every cut of at most so many tensors that a plan could have, the two ends included.

    The first stage alone reads the image and the last one writes all outputs: there is no cut before the last operator
    that reads the image, and none after the first output.
    """
    live, cuts = [graph.input], [Cut(0, (graph.input,))]
    for index, node in enumerate(graph.nodes[:-1]):
        live = [name for name in (*live, node.output) if graph.last_use(name) > index]
        if node.output in graph.outputs:
            break
        plain = all(graph.can_cross(name) for name in live)
        if plain and len(live) <= most_tensors and graph.input not in live:
            cuts.append(Cut(index + 1, tuple(live)))
    return [*cuts, Cut(len(graph.nodes), graph.outputs)]


def cuts_at(graph: Graph, stops: Sequence[int]) -> list[Cut]:
    """Return the cuts at which stages stop, the two ends included; inside a gang any number of tensors may cross."""
    every = {cut.position: cut for cut in all_cuts(graph, len(graph.nodes))}
    return [every[0], *(every[stop] for stop in stops)]


def cut_points(graph: Graph, room: int | None = None) -> list[Cut]:
    """Return the cuts that the planner considers, the two ends included.

    Cuts of one tensor are, but for those between an operator and a pointwise one that follows it: the cut after both
    moves as many bytes and fuses better. Cuts of several tensors are where they move less than the cuts of one tensor
    on both sides, where tiles have just pooled their share, or where more than `room` bytes of weights lie between.
    """
    cuts = all_cuts(graph)
    single = [cut for cut in cuts if _is_plain(graph, cut)]
    points = list(single)
    for left, right in pairwise(single):
        inner = [cut for cut in cuts if left.position < cut.position < right.position and len(cut.tensors) > 1]
        crowded = room is not None and weight_bytes(graph, left.position, right.position) > room
        least = min(_elements(graph, left), _elements(graph, right))
        for cut in inner:
            pooled = graph.nodes[cut.position - 1].kind == operators.TILE_POOL
            if crowded or pooled or _elements(graph, cut) < least:
                points.append(cut)
    return sorted(points, key=lambda cut: cut.position)


def _is_plain(graph: Graph, cut: Cut) -> bool:
    at_an_end = cut.position in (0, len(graph.nodes))
    return at_an_end or (len(cut.tensors) == 1 and graph.nodes[cut.position].kind not in POINTWISE)


def _elements(graph: Graph, cut: Cut) -> int:
    return sum(graph.shape(name).elements for name in cut.tensors)


def cuts_after(graph: Graph, names: Sequence[str], most_tensors: int = MOST_TENSORS) -> list[Cut]:
    """Return the cuts after the operators called `names`, the two ends included.

    Raises UsageError that names an operator which is not there, or after which too much is still needed.
    """
    cuts = {cut.position: cut for cut in all_cuts(graph, most_tensors)}
    positions = {node.name: index + 1 for index, node in enumerate(graph.nodes)}
    chosen = []
    for name in names:
        if name not in positions:
            raise UsageError(f"there is no operator {name!r} to cut after; serfer explain lists a plan's operators")
        if positions[name] == len(graph.nodes):
            raise UsageError(f"{name!r} is the network's last operator: nothing lies after it to cut off")
        if positions[name] not in cuts:
            near = min(cuts, key=lambda position: abs(position - positions[name]))
            other = graph.nodes[max(near, 1) - 1].name
            raise UsageError(
                f"no cut can fall after {name!r}: the image or more than {most_tensors} tensors would cross it; the "
                f"nearest place is after {other!r}"
            )
        chosen.append(cuts[positions[name]])
    ends = [cuts[0], cuts[len(graph.nodes)]]
    return sorted({cut.position: cut for cut in (*ends, *chosen)}.values(), key=lambda cut: cut.position)


def weight_bytes(graph: Graph, start: int, stop: int, half: Container[str] = ()) -> int:
    """Return the bytes that the constants of nodes [start, stop) take, each counted once; those in `half` in fp16."""
    names = {name for node in graph.nodes[start:stop] for name in graph.constants(node)}
    return sum(graph.weights[name].nbytes // (2 if name in half else 1) for name in names)
