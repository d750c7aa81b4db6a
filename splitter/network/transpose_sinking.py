"""Transpose sinking: rewrites that keep axis 0 the batch axis.

Exporters bring another axis to the front to index or unpack it, and fold the heads of attention into the batch to
transpose a product's operand. Each comes back soon after:

    Transpose - Gather (axis 0) - Transpose       torch's x[:, [2, 1, 0]]: one Gather (axis 1)
    Transpose - GatherND (grid) - Transpose       interpolation with "nearest-exact": two Gathers (axes 2 and 3)
    Transpose - Slice, Squeeze (axis 0)           q, k, v = qkv.permute(2, 0, 3, 1, 4): Slice, Squeeze, Transpose
    Reshape - Transpose (0, 2, 1) - Reshape       the keys of scaled_dot_product_attention: one Transpose
    Unsqueeze - Concat - ReduceSum (all axis 0)   torch.stack(maps).sum(0): Adds
    Reshape (to one axis) - Gather (0, 1, 2 ...)  torch's as_strided where it changes nothing: one Reshape
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.splitter.network.canonicalize import Rewriter, without_identities
from serfer.splitter.network.graph import Graph, Node, integers, needed_for

_SWAPPED = [0, 2, 1]
_GRID_RANK, _ROW_AND_COLUMN = 3, (0, 1)


def with_batch_first(graph: Graph) -> Graph:
    """Move transposes that put another axis than the batch axis first behind the operators that act on that axis.

    There they meet what moves the axes back: together they do nothing.
    """
    rewriter = Rewriter(graph)
    makers: dict[str, Node] = {}
    for node in graph.nodes:
        move = makers.get(node.inputs[0])
        plainer = _unfolded(graph, makers, node) or _unstrided(graph, makers, node) or _added(rewriter, makers, node)
        if move and "perm" in move.attributes and node.output not in graph.others:
            plainer = plainer or _one_move(move, node) or _grid(rewriter, move, node)
            plainer = plainer or _moved_behind(rewriter, move, node)
        makers[node.output] = plainer or node
        rewriter.nodes.append(plainer or node)
    sunk = without_identities(rewriter.done())
    return replace(sunk, nodes=needed_for(sunk.nodes, sunk.outputs))


def _added(rewriter: Rewriter, makers: dict[str, Node], node: Node) -> Node | None:
    graph = rewriter.graph
    if node.kind != "ReduceSum" or integers(graph, node, 1) != [0] or node.attributes.get("keepdims", 1):
        return None
    stack = makers.get(node.inputs[0])
    if stack is None or stack.kind != "Concat" or stack.attributes["axis"] % len(graph.shapes[stack.output]):
        return None
    parts = [makers.get(name) for name in stack.inputs]
    raised = [part for part in parts if part and part.kind == "Unsqueeze" and integers(graph, part, 1) == [0]]
    if len(raised) < len(parts) or len(parts) == 1:
        return None
    total, *others, last = (part.inputs[0] for part in raised)
    for number, name in enumerate(others):
        step = Node(f"{node.name}.{number}", "Add", (total, name), f"{node.output}.{number}")
        total = rewriter.add(step, graph.shapes[node.output])
    return Node(node.name, "Add", (total, last), node.output)


def _one_move(first: Node, second: Node) -> Node | None:
    if "perm" not in second.attributes:
        return None
    perm = [first.attributes["perm"][axis] for axis in second.attributes["perm"]]
    if perm == sorted(perm):
        return Node(second.name, "Identity", first.inputs, second.output)
    return replace(second, inputs=first.inputs, attributes={"perm": perm})


def _moved_behind(rewriter: Rewriter, move: Node, node: Node) -> Node | None:
    perm: list[int] = move.attributes["perm"]
    acted = _acting(rewriter, node, perm) if perm[0] != 0 else None
    if acted is None:
        return None
    kind, inputs, attributes, gone = acted
    order = [axis - sum(other < axis for other in gone) for axis in perm if axis not in gone]
    shape = [size for _, size in sorted(zip(order, rewriter.graph.shapes[node.output], strict=True))]
    first = Node(node.name, kind, (move.inputs[0], *inputs), f"{node.output}.first", attributes)
    rewriter.add(first, tuple(shape))
    behind = Node(f"{node.name}.moved", "Transpose", (first.output,), node.output, {"perm": order})
    return behind if order != sorted(order) else Node(behind.name, "Identity", behind.inputs, behind.output)


def _grid(rewriter: Rewriter, move: Node, node: Node) -> Node | None:
    indices = rewriter.graph.weights.get(node.inputs[1]) if node.kind == "GatherND" else None
    perm: list[int] = move.attributes["perm"]
    pairs = indices is not None and indices.ndim == _GRID_RANK and indices.shape[-1] == len(_ROW_AND_COLUMN)
    if indices is None or not pairs or node.attributes.get("batch_dims", 0):
        return None
    picks = indices[:, 0, 0], indices[0, :, 1]
    if 0 in perm[:2] or not np.array_equal(indices, np.stack(np.meshgrid(*picks, indexing="ij"), axis=-1)):
        return None
    source, shape = move.inputs[0], list(rewriter.graph.shapes[move.inputs[0]])
    for axis, chosen in zip(perm, picks, strict=False):
        shape[axis] = len(chosen)
        output = f"{node.output}.{axis}"
        inputs = source, rewriter.constant(f"{output}.indices", chosen)
        source = rewriter.add(Node(f"{node.name}.{axis}", "Gather", inputs, output, {"axis": axis}), tuple(shape))
    return Node(f"{node.name}.moved", "Transpose", (source,), node.output, {"perm": perm})


_Acting = tuple[str, tuple[str, ...], dict[str, Any], Collection[int]]


def _acting(rewriter: Rewriter, node: Node, perm: Sequence[int]) -> _Acting | None:
    graph = rewriter.graph
    picks = _picks(graph, node)
    if picks is not None:
        indices = rewriter.constant(f"{node.output}.indices", picks)
        return "Gather", (indices,), {"axis": perm[0]}, perm[: 1 - picks.ndim]
    place = {"Slice": 3, "Squeeze": 1}.get(node.kind)
    axes = integers(graph, node, place) if place else None
    if not place or not axes:
        return None
    axes = [perm[axis % len(perm)] for axis in axes]
    inputs = (*node.inputs[1:place], rewriter.constant(f"{node.output}.axes", axes), *node.inputs[place + 1 :])
    return node.kind, inputs, node.attributes, axes if node.kind == "Squeeze" else ()


def _picks(graph: Graph, node: Node) -> NDArray[Any] | None:
    if node.kind not in ("Gather", "GatherND") or node.inputs[1] not in graph.weights:
        return None
    indices = graph.weights[node.inputs[1]]
    if node.kind == "GatherND" and indices.shape[-1] == 1 and not node.attributes.get("batch_dims", 0):
        indices = indices[..., 0]
    elif node.kind == "GatherND" or node.attributes.get("axis", 0) != 0:
        return None
    return indices if indices.ndim <= 1 else None


def _unfolded(graph: Graph, makers: dict[str, Node], node: Node) -> Node | None:
    swap = makers.get(node.inputs[0])
    fold = makers.get(swap.inputs[0]) if swap and swap.attributes.get("perm") == _SWAPPED else None
    if not fold or not node.kind == fold.kind == "Reshape":
        return None
    before, folded, after = graph.shapes[fold.inputs[0]], graph.shapes[fold.output], graph.shapes[node.output]
    *others, rows, cols = before
    if folded != (prod(others), rows, cols) or after != (*others, cols, rows):
        return None
    count = len(others)
    return Node(node.name, "Transpose", fold.inputs[:1], node.output, {"perm": [*range(count), count + 1, count]})


def _unstrided(graph: Graph, makers: dict[str, Node], node: Node) -> Node | None:
    """Return one reshape for a Reshape to a vector and a Gather of all its values in order; None for others."""
    flat = makers.get(node.inputs[0])
    if not flat or flat.kind != "Reshape" or node.kind != "Gather" or len(graph.shapes[flat.output]) != 1:
        return None
    indices, count = graph.weights.get(node.inputs[1]), prod(graph.shapes[flat.output])
    if indices is None or not np.array_equal(indices.ravel() % count, np.arange(count)):
        return None
    return Node(node.name, "Reshape", flat.inputs, node.output)
