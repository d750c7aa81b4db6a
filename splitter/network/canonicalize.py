"""Canonical forms of operators, so that the splitter handles fewer kinds.

Padding that repeats the image, and enlarging by repetition, choose rows and columns: Gather. Interpolation mixes them:
a product with a constant matrix on either side, as in ADR 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from splitter.network.graph import COL_AXIS, MAP_RANK, ROW_AXIS, Graph, Node, Weights
from splitter.network.onnx_models import model_of, run_once
from splitter.network.unsupported import refuse
from splitter.tiling.receptive_field import explicit_pads
from splitter.tiling.rule import integers
from splitter.tiling.windowed import WINDOWED

_PAD_MODES = {b"reflect": "reflect", b"edge": "edge", b"wrap": "wrap"}
_LARGEST_MATRIX = 128 * 128
"""Entries of an interpolation's matrix up to which the two products are worth their arithmetic."""
_ENDLESS = 2**31 - 1


class Rewriter:
    """Collects the nodes, constants and shapes of a graph in its plainer form."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.weights: Weights = dict(graph.weights)
        self.shapes = dict(graph.shapes)

    def constant(self, name: str, value: Any) -> str:  # noqa: ANN401 - numbers of any kind
        """Add a constant and return its name."""
        self.weights[name] = np.asarray(value)
        return name

    def add(self, node: Node, shape: tuple[int, ...]) -> str:
        """Append an operator and return its output, which has this shape."""
        self.nodes.append(node)
        self.shapes[node.output] = shape
        return node.output

    def done(self) -> Graph:
        """Return the graph of what was collected."""
        used = {name for node in self.nodes for name in node.inputs}
        weights = {name: value for name, value in self.weights.items() if name in used}
        return replace(self.graph, nodes=tuple(self.nodes), weights=weights, shapes=self.shapes)


def plain(graph: Graph) -> Graph:
    """Return the graph with the operators of `_REWRITES` in plainer form."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        rewrite = _REWRITES.get(node.kind)
        if not (rewrite and rewrite(rewriter, node)):
            rewriter.nodes.append(node)
    return rewriter.done()


def without_identities(graph: Graph) -> Graph:
    """Return the graph without operators that do nothing once a network is trained."""
    same: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        plainest = graph.shapes[node.output] == graph.shapes.get(node.inputs[0]) and node.output != graph.output
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
        if attributes.get("auto_pad") == b"NOTSET" or node.kind != "ConvTranspose":
            attributes["pads"] = explicit_pads(attributes, shape[2:])
            attributes.pop("auto_pad", None)
        attributes.setdefault("pads", [0, 0, 0, 0])
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
    """Write padding by repetition as Gathers, and negative padding as a Slice."""
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
    """Write an operator as one Gather for each axis on which it chooses indices."""
    source, shape = node.inputs[0], list(rewriter.graph.shapes[node.inputs[0]])
    for number, (axis, indices) in enumerate(chosen.items(), start=1):
        last = number == len(chosen)
        shape[axis] = len(indices)
        output, name = (node.output, node.name) if last else (f"{node.output}.{axis}", f"{node.name}.{axis}")
        constant = rewriter.constant(f"{node.output}.{axis}.indices", indices.astype(np.int64))
        source = rewriter.add(Node(name, "Gather", (source, constant), output, {"axis": axis}), tuple(shape))
    return bool(chosen)


def _resize(rewriter: Rewriter, node: Node) -> bool:
    """Write resizing of rows and columns as Gathers (nearest) or as products with matrices (linear, cubic)."""
    graph = rewriter.graph
    before, after = graph.shapes.get(node.inputs[0], ()), graph.shapes[node.output]
    constant = graph.activations(node) == [node.inputs[0]]
    crops = node.attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    if len(before) != MAP_RANK or before[:2] != after[:2] or not constant or crops:
        return False
    if node.attributes.get("mode", b"nearest") == b"nearest":
        return _choose(rewriter, node, {axis: _nearest(graph, node, axis) for axis in (ROW_AXIS, COL_AXIS)})
    if max(before[axis] * after[axis] for axis in (ROW_AXIS, COL_AXIS)) > _LARGEST_MATRIX:
        sizes = rewriter.constant(f"{node.output}.sizes", list(after[ROW_AXIS:]))  # without the batch's
        attributes = {**node.attributes, "axes": [ROW_AXIS, COL_AXIS]}
        scaled = len(node.inputs) < MAP_RANK
        rewriter.nodes.append(
            node if scaled else replace(node, inputs=(node.inputs[0], "", "", sizes), attributes=attributes)
        )
        return True
    cols = rewriter.constant(f"{node.output}.cols", np.ascontiguousarray(_matrix(graph, node, COL_AXIS).T))
    rows = rewriter.constant(f"{node.output}.rows", _matrix(graph, node, ROW_AXIS))
    wide = Node(f"{node.name}.cols", "MatMul", (node.inputs[0], cols), f"{node.output}.wide")
    middle = rewriter.add(wide, (*before[:3], after[COL_AXIS]))
    rewriter.add(Node(node.name, "MatMul", (rows, middle), node.output), after)
    return True


def _nearest(graph: Graph, node: Node, axis: int) -> NDArray[Any]:
    """Return which row (or column) each one of the result repeats, by resizing a map of their numbers."""
    height, width = graph.shapes[node.inputs[0]][ROW_AXIS:]
    numbers = np.indices((height, width), dtype=np.float32)[axis - ROW_AXIS]
    result = _run(graph, node, numbers[None, None])[0, 0]
    return np.asarray(np.rint(result[:, 0] if axis == ROW_AXIS else result[0]))


def _matrix(graph: Graph, node: Node, axis: int) -> NDArray[np.float32]:
    """Return what resizing does to one axis, (outputs, inputs): channel i of the image is 1 in row (or column) i."""
    _, _, height, width = graph.shapes[node.inputs[0]]
    eye = np.eye(height if axis == ROW_AXIS else width, dtype=np.float32)
    image = np.broadcast_to(eye[:, :, None] if axis == ROW_AXIS else eye[:, None, :], (len(eye), height, width))
    result = _run(graph, node, np.ascontiguousarray(image[None]))[0]
    return np.ascontiguousarray((result[:, :, 0] if axis == ROW_AXIS else result[:, 0, :]).T)


def _run(graph: Graph, node: Node, image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run one operator, whose other inputs are constant, on an image with as many channels as it likes."""
    constants = {name: graph.weights[name] for name in graph.constants(node)}
    sizes = node.inputs[3] if len(node.inputs) > 3 else ""  # noqa: PLR2004 - X, roi, scales, sizes
    if sizes and constants[sizes].size == MAP_RANK:
        constants[sizes] = np.array([1, image.shape[1], *constants[sizes][2:]], dtype=np.int64)
    model = model_of(
        [helper.make_node(node.kind, node.inputs, [node.output], **node.attributes)],
        [helper.make_tensor_value_info(node.inputs[0], TensorProto.FLOAT, image.shape)],
        [helper.make_tensor_value_info(node.output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        opset=graph.opset,
    )
    return run_once(model, {node.inputs[0]: image})[0]


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


_REWRITES: dict[str, Callable[[Rewriter, Node], bool]] = {"Concat": _concat, "Pad": _pad, "Resize": _resize}
