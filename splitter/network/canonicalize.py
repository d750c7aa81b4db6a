"""Canonical forms of operators, so that the splitter handles fewer kinds.

Padding that repeats the image chooses rows and columns: Gather. Interpolation of a few mixes them: a product with a
constant matrix on either side, as in ADR 2; of many it stays a Resize, which has a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Span
from serfer.splitter.network.graph import COL_AXIS, MAP_RANK, NCHW, ROW_AXIS, WINDOWED, Graph, Node, Weights, integers
from serfer.splitter.network.interpolation import INTERPOLATION, Interpolation, interpolation, is_separable
from serfer.splitter.network.sliding_window import explicit_pads, transposed_attributes
from serfer.splitter.network.unsupported import refuse

_PAD_MODES = {b"reflect": "reflect", b"edge": "edge", b"wrap": "wrap"}
_LARGEST_MATRIX = 128 * 128
"""Entries of an interpolation's matrix up to which the two products are worth their arithmetic."""
_ENDLESS = 2**31 - 1


class Rewriter:
    """Collects the nodes, constants and shapes of a graph in its plainer form."""

    def __init__(self, graph: Graph, *, any_size: bool = False) -> None:
        self.graph = graph
        self.any_size = any_size
        self.nodes: list[Node] = []
        self.weights: Weights = dict(graph.weights)
        self.shapes = dict(graph.shapes)
        self.places = dict(graph.places)

    def constant(self, name: str, value: Any) -> str:  # noqa: ANN401 - numbers of any kind
        self.weights[name] = np.asarray(value)
        return name

    def add(self, node: Node, shape: tuple[int, ...], like: str | None = None) -> str:
        """Append an operator and return its output, which has this shape, and rows and columns where `like` has."""
        self.nodes.append(node)
        self.shapes[node.output] = shape
        if like in self.places:
            self.places[node.output] = self.places[like]
        return node.output

    def done(self) -> Graph:
        used = {name for node in self.nodes for name in node.inputs}
        weights = {name: value for name, value in self.weights.items() if name in used}
        return replace(self.graph, nodes=tuple(self.nodes), weights=weights, shapes=self.shapes, places=self.places)


def plain(graph: Graph, *, any_size: bool = False) -> Graph:
    """Return the graph with the operators of `_REWRITES` in plainer form; with `any_size`, the same at any size."""
    rewriter = Rewriter(graph, any_size=any_size)
    for node in graph.nodes:
        rewrite = _REWRITES.get(node.kind)
        if not (rewrite and rewrite(rewriter, node)):
            rewriter.nodes.append(node)
    return rewriter.done()


def without_identities(graph: Graph) -> Graph:
    same: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        plainest = graph.shapes[node.output] == graph.shapes.get(node.inputs[0]) and node.output not in graph.outputs
        if plainest and _does_nothing(graph, node):
            same[node.output] = inputs[0]
        elif node.kind == "Dropout":
            nodes.append(Node(node.name, "Identity", inputs[:1], node.output))
        else:
            nodes.append(replace(node, inputs=inputs))
    return replace(graph, nodes=tuple(nodes))


def _does_nothing(graph: Graph, node: Node) -> bool:
    if node.kind == "Cast":
        return not {node.inputs[0], node.output} & graph.others
    if node.kind == "Slice":
        starts, stops, steps = (integers(graph, node, index) for index in (1, 2, 4))
        return starts == [0] * len(starts or [1]) and min(stops or [0]) >= _ENDLESS and set(steps or [1]) == {1}
    if node.kind == "Pad":  # a 1 x 1 convolution's, of a network that pads by reflection
        return not any(integers(graph, node, 1) or [1])
    return node.kind in ("Identity", "Dropout", "Reshape")


def with_explicit_windows(graph: Graph) -> Graph:
    """Write every window on a map with a kernel shape, and `auto_pad` and absent pads as top, left, bottom, right."""
    nodes = []
    for node in graph.nodes:
        shape = graph.shapes.get(node.inputs[0], ())
        if node.kind not in (*WINDOWED, "ConvTranspose") or len(shape) != MAP_RANK:
            nodes.append(node)
            continue
        attributes = dict(node.attributes)
        if node.kind.startswith("Conv") and node.inputs[1] in graph.shapes:
            attributes["kernel_shape"] = list(graph.shapes[node.inputs[1]][2:])
        elif node.kind.startswith("Conv"):
            attributes["kernel_shape"] = list(graph.weights[node.inputs[1]].shape[2:])
        if node.kind == "ConvTranspose":
            attributes = transposed_attributes(attributes, shape[2:], graph.shapes[node.output][2:])
        else:
            attributes["pads"] = explicit_pads(attributes, shape[2:])
            attributes.pop("auto_pad", None)
        nodes.append(replace(node, attributes=attributes))
    return replace(graph, nodes=tuple(nodes))


def with_free_batch(graph: Graph) -> Graph:
    """Rewrite reshapes that name the batch size of the example, so that N is free."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.kind != "Reshape":
            rewriter.nodes.append(node)
            continue
        target = graph.shapes[node.output]
        if len(target) == 2:  # noqa: PLR2004 - (N, K)
            rewriter.nodes.append(Node(node.name, "Flatten", node.inputs[:1], node.output, {"axis": 1}))
            continue
        shape = rewriter.constant(f"{node.name}.shape", [0, *target[1:]])  # 0 keeps the input's batch axis
        rewriter.nodes.append(Node(node.name, "Reshape", (node.inputs[0], shape), node.output, {}))
    return rewriter.done()


def _pad(rewriter: Rewriter, node: Node) -> bool:
    graph, source = rewriter.graph, node.inputs[0]
    amounts, axes, shape = integers(graph, node, 1), integers(graph, node, 3), graph.shapes.get(source)
    if amounts is None or axes is None or shape is None:
        return False
    pads = {(axis % len(shape)): pair for axis, pair in zip(axes or range(len(shape)), _pairs(amounts), strict=True)}
    mode = _PAD_MODES.get(node.attributes.get("mode", b"constant"))
    if mode and min(amounts) >= 0:
        chosen = {
            axis: np.pad(np.arange(shape[axis]), pair, mode=mode)  # type: ignore[call-overload]  # a literal to numpy
            for axis, pair in pads.items()
            if any(pair)
        }
        return _choose(rewriter, node, chosen)
    if mode or min(amounts) >= 0:
        return False
    kept = {axis: (max(0, -before), min(0, after)) for axis, (before, after) in pads.items() if min(before, after) < 0}
    inner = tuple(size + stop - start for axis, size in enumerate(shape) for start, stop in [kept.get(axis, (0, 0))])
    bounds = ([start for start, _ in kept.values()], [stop or _ENDLESS for _, stop in kept.values()], list(kept))
    names = [
        rewriter.constant(f"{node.output}.crop.{name}", np.array(value))
        for name, value in zip(("starts", "stops", "axes"), bounds, strict=True)
    ]
    crop = rewriter.add(Node(f"{node.name}.crop", "Slice", (source, *names), f"{node.output}.crop"), inner)
    positive = rewriter.constant(f"{node.output}.positive", [max(0, amount) for amount in amounts])
    rewriter.add(replace(node, inputs=(crop, positive, *node.inputs[2:])), graph.shapes[node.output])
    return True


def _pairs(amounts: list[int]) -> list[tuple[int, int]]:
    half = len(amounts) // 2
    return list(zip(amounts[:half], amounts[half:], strict=True))


def _choose(rewriter: Rewriter, node: Node, chosen: dict[int, NDArray[Any]]) -> bool:
    source, shape = node.inputs[0], list(rewriter.graph.shapes[node.inputs[0]])
    for number, (axis, indices) in enumerate(chosen.items(), start=1):
        last = number == len(chosen)
        shape[axis] = len(indices)
        output, name = (node.output, node.name) if last else (f"{node.output}.{axis}", f"{node.name}.{axis}")
        constant = rewriter.constant(f"{node.output}.{axis}.indices", indices.astype(np.int64))
        source = rewriter.add(Node(name, "Gather", (source, constant), output, {"axis": axis}), tuple(shape))
    return bool(chosen)


def _resize(rewriter: Rewriter, node: Node) -> bool:
    """Write resizing of one row and column as an Expand, of few by linear or cubic weights as products with matrices.

    Any other one is left to its rule, by sizes (or scales) of rows and columns alone: those of images are not fixed.
    """
    graph = rewriter.graph
    if not is_separable(graph, node):
        return _without_batch(rewriter, node)
    source, before, after = node.inputs[0], graph.shapes[node.inputs[0]], graph.shapes[node.output]
    rows, cols = (interpolation(graph, node, axis) for axis in NCHW)
    nearest = node.attributes.get("mode", b"nearest") == b"nearest"
    if before == after:  # whatever the scales
        rewriter.nodes.append(Node(node.name, "Identity", (source,), node.output))
    elif before[ROW_AXIS:] == (1, 1) and all(np.allclose(taps.weights, 1, atol=1e-6) for taps in (rows, cols)):
        size = rewriter.constant(f"{node.output}.size", [1, *after[1:]])
        rewriter.nodes.append(Node(node.name, "Expand", (source, size), node.output))
    elif not nearest and not rewriter.any_size and max(before[axis] * after[axis] for axis in NCHW) <= _LARGEST_MATRIX:
        whole = [taps.matrix(Span(0, taps.outputs), Span(0, taps.inputs)) for taps in (rows, cols)]
        left = rewriter.constant(f"{node.output}.rows", whole[0])
        right = rewriter.constant(f"{node.output}.cols", np.ascontiguousarray(whole[1].T))
        wide = Node(f"{node.name}.cols", "MatMul", (source, right), f"{node.output}.wide")
        middle = rewriter.add(wide, (*before[:3], after[COL_AXIS]))
        rewriter.nodes.append(Node(node.name, "MatMul", (left, middle), node.output))
    else:
        rewriter.nodes.append(_plain_resize(rewriter, node, (rows, cols)))
    return True


def _without_batch(rewriter: Rewriter, node: Node) -> bool:
    """Take the batch axis from the sizes of a resizing that is computed in one piece, such as of a cropped map."""
    sizes = rewriter.graph.weights.get(node.inputs[3]) if len(node.inputs) == MAP_RANK else None
    if sizes is None or sizes.shape != (MAP_RANK,) or "axes" in node.attributes:
        return False
    inputs = [*node.inputs[:3], rewriter.constant(f"{node.output}.sizes", sizes[1:])]
    region = rewriter.graph.weights.get(inputs[1])
    if region is not None and region.size == 2 * MAP_RANK:
        kept = np.delete(region, [0, MAP_RANK])
        inputs[1] = rewriter.constant(f"{node.output}.region", kept)
    rewriter.nodes.append(replace(node, inputs=tuple(inputs), attributes={**node.attributes, "axes": [1, 2, 3]}))
    return True


def _plain_resize(rewriter: Rewriter, node: Node, sides: tuple[Interpolation, Interpolation]) -> Node:
    """Return a Resize by scales where they are whole numbers, for which ONNX Runtime is fastest, else by sizes."""
    attributes = {name: value for name, value in node.attributes.items() if name in INTERPOLATION}
    repeats = [taps.repeats for taps in sides]
    if None not in repeats:
        attributes = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    elif len(node.inputs) < MAP_RANK:  # scales, which need not be what the sizes make of them
        return node
    scales = [taps.outputs / taps.inputs for taps in sides]
    if all(scale.is_integer() for scale in scales):
        given = rewriter.constant(f"{node.output}.scales", np.array([1, 1, *scales], dtype=np.float32))
        return Node(node.name, node.kind, (node.inputs[0], "", given), node.output, attributes)
    sizes = rewriter.constant(f"{node.output}.sizes", [taps.outputs for taps in sides])
    return Node(node.name, node.kind, (node.inputs[0], "", "", sizes), node.output, {**attributes, "axes": [*NCHW]})


def _pixel_shuffle(rewriter: Rewriter, node: Node) -> bool:
    graph = rewriter.graph
    makers = {other.output: other for other in rewriter.nodes[-2:]}
    move = makers.get(node.inputs[0])
    unfold = makers.get(move.inputs[0]) if move and move.kind == "Transpose" else None
    if move is None or unfold is None or unfold.kind != "Reshape":
        return False
    if any(len(graph.readers[other.output]) > 1 for other in (move, unfold)):
        return False
    shapes = graph.shapes[unfold.inputs[0]], graph.shapes[unfold.output], graph.shapes[node.output]
    found = _shuffled(shapes, move.attributes.get("perm"))
    if found is None:
        return False
    del rewriter.nodes[-2:]
    kind, attributes, order = found
    if order is None:
        rewriter.nodes.append(Node(node.name, kind, unfold.inputs[:1], node.output, attributes))
        return True
    first = Node(f"{node.name}.blocks", kind, unfold.inputs[:1], f"{node.output}.blocks", attributes)
    indices = rewriter.constant(f"{node.output}.order", order)
    rewriter.nodes.append(
        Node(node.name, "Gather", (rewriter.add(first, shapes[2]), indices), node.output, {"axis": 1})
    )
    return True


_Shuffle = tuple[str, dict[str, Any], NDArray[np.int64] | None]


def _shuffled(shapes: tuple[tuple[int, ...], ...], perm: list[int] | None) -> _Shuffle | None:
    """Return kind and attributes of the operator that a map's unfolding, a transpose and folding are.

    `shapes` are the map's, unfolded, and the result's. The third value is the order of channels to put its result in.
    """
    before, unfolded, after = shapes
    if len(before) != MAP_RANK or len(after) != MAP_RANK or len(unfolded) != MAP_RANK + 2:
        return None
    channels, rows, cols = after[1:]
    small, large = (before[1:], after[1:]) if rows > before[ROW_AXIS] else (after[1:], before[1:])
    block = large[1] // small[1]
    blocked = (block, block)
    forms: dict[tuple[tuple[int, ...], tuple[int, ...]], _Shuffle] = {
        ((1, channels, *blocked, *small[1:]), (0, 1, 4, 2, 5, 3)): ("DepthToSpace", {"mode": b"CRD"}, None),
        ((1, *blocked, channels, *small[1:]), (0, 3, 4, 1, 5, 2)): ("DepthToSpace", {"mode": b"DCR"}, None),
    }
    if rows < before[ROW_AXIS]:
        each = np.arange(channels).reshape(block * block, -1).T.reshape(-1) if channels % block**2 == 0 else None
        halves = (1, before[1], rows, block, cols, block)
        forms = {
            (halves, (0, 1, 3, 5, 2, 4)): ("SpaceToDepth", {}, each),
            (halves, (0, 3, 5, 1, 2, 4)): ("SpaceToDepth", {}, None),
        }
    kind, attributes, order = forms.get((unfolded, tuple(perm or ())), ("", {}, None))
    return (kind, {"blocksize": block, **attributes}, order) if kind else None


def _concat(rewriter: Rewriter, node: Node) -> bool:
    """Repeat constants that are joined to activations for each image of a batch: they have one."""
    graph = rewriter.graph
    constants = graph.constants(node)
    if not constants:
        return False
    if node.output in graph.others:
        raise refuse(
            node.name, node.kind, "it joins constants to activations that are not float32; join float32 values"
        )
    source = graph.activations(node)[0]
    rank = len(graph.shapes[node.output])
    axis = node.attributes["axis"] % rank
    bounds = [
        rewriter.constant(f"{node.output}.{name}", [value])
        for name, value in (("starts", 0), ("stops", 1), ("axes", axis))
    ]
    thin = tuple(1 if index == axis else size for index, size in enumerate(graph.shapes[source]))
    one = rewriter.add(Node(f"{node.name}.one", "Slice", (source, *bounds), f"{node.output}.one"), thin)
    never = rewriter.constant(f"{node.output}.never", False)  # noqa: FBT003 - the constant's value
    repeated = {
        name: rewriter.add(
            Node(f"{node.name}.{name}", "Where", (never, one, name), f"{node.output}.{name}"), graph.weights[name].shape
        )
        for name in dict.fromkeys(constants)
    }
    rewriter.nodes.append(replace(node, inputs=tuple(repeated.get(name, name) for name in node.inputs)))
    return True


def _grid_sample(rewriter: Rewriter, node: Node) -> bool:
    graph = rewriter.graph
    source, grid = node.inputs
    if grid not in graph.weights or graph.weights[grid].ndim != MAP_RANK or source in graph.weights:
        return False
    bounds = [rewriter.constant(f"{node.output}.{name}", [value] * 3) for name, value in (("starts", 0), ("stops", 1))]
    axes = rewriter.constant(f"{node.output}.axes", [1, 2, 3])
    one = rewriter.add(Node(f"{node.name}.one", "Slice", (source, *bounds, axes), f"{node.output}.one"), (1, 1, 1, 1))
    never = rewriter.constant(f"{node.output}.never", False)  # noqa: FBT003 - the constant's value
    repeated = Node(f"{node.name}.grid", "Where", (never, one, grid), f"{node.output}.grid")
    given = rewriter.add(repeated, graph.weights[grid].shape)
    rewriter.nodes.append(replace(node, inputs=(source, given)))
    return True


_REWRITES: dict[str, Callable[[Rewriter, Node], bool]] = {
    "Concat": _concat,
    "GridSample": _grid_sample,
    "Pad": _pad,
    "Reshape": _pixel_shuffle,
    "Resize": _resize,
}
