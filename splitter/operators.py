"""What each operator reads of its inputs for a rectangle of its output: the rules by which stages are spread.

Windows have their own file (windows.py). Here stand the other operators, and what can be spread in which way:

    over tiles      a rectangle of a map needs a rectangle of each input map
    by columns      columns of a vector need, through a fully connected layer, the whole vector before it
    as partial sums global pooling of a map: each tile pools its share, and whoever reads them adds them up (TilePool)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from serfer.core.geometry import Span, even_parts
from splitter.graph import Graph, Node
from splitter.windows import COL_AXIS, ROW_AXIS, window

POOLS = frozenset({"MaxPool", "AveragePool"})
WINDOWED = POOLS | {"Conv"}
_PER_CHANNEL = frozenset({"BatchNormalization", "LRN", "PRelu"})
_PER_VALUE = frozenset(
    {
        *("Abs", "Ceil", "Celu", "Clip", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softplus"),
        *("Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"),
    }
)
POINTWISE = _PER_CHANNEL | _PER_VALUE
BROADCAST = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean", "PRelu"})
TILE_POOL = "TilePool"
"""Each tile of a grid pooled apart: a (C, H, W) map becomes (C, rows, cols). Not an ONNX operator."""
TILE_SUM = "TileSum"
"""What tiles pooled, put together: (C, rows, cols) becomes (C, 1, 1). Not an ONNX operator."""
_REARRANGE = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
CHANNEL_AXIS = 1
_MAP, _VECTOR = 4, 2


def tileable(graph: Graph, node: Node) -> bool:
    """Say whether a rectangle of the operator's output needs only a rectangle of each input map.

    What follows global pooling is as good as that: so small that every tile can compute it whole.
    """
    if node.kind == TILE_SUM or _is_small(graph, node):
        return True
    maps = all(len(graph.shapes[name]) == _MAP for name in [*graph.activations(node), node.output])
    rule = _RULES.get(node.kind)
    return maps and rule is not None and rule(graph, node)


def by_columns(graph: Graph, node: Node) -> bool:
    """Say whether the operator may be part of a stage that is spread by the columns of its output vector."""
    if len(graph.shapes[node.output]) != _VECTOR:
        return False
    if is_fully_connected(graph, node) or node.kind in _PER_VALUE or is_whole(graph, node):
        return True
    vectors = all(len(graph.shapes[name]) == _VECTOR for name in graph.activations(node))
    return vectors and node.kind in BROADCAST and _broadcasts(graph, node)


def is_fully_connected(graph: Graph, node: Node) -> bool:
    """Say whether the operator multiplies a vector by a constant matrix."""
    if node.kind not in ("Gemm", "MatMul") or len(node.inputs) < 2:  # noqa: PLR2004 - x and the matrix
        return False
    straight = not node.attributes.get("transA", 0) and node.inputs[1] in graph.weights
    constant_bias = all(name in graph.weights for name in node.inputs[2:] if name)
    return (
        straight
        and constant_bias
        and len(graph.shapes.get(node.inputs[0], ())) == _VECTOR
        and graph.weights[node.inputs[1]].ndim == 2  # noqa: PLR2004 - a matrix
    )


def is_whole(graph: Graph, node: Node) -> bool:
    """Say whether every tile of a spread stage computes all of the operator's output, from all of its inputs."""
    if node.kind in _REARRANGE or node.kind == TILE_SUM:
        return True
    return _is_small(graph, node) and not is_fully_connected(graph, node) and node.kind not in POINTWISE | BROADCAST


def _is_small(graph: Graph, node: Node) -> bool:
    """Say whether the operator works on vectors and maps of one position alone."""
    shapes = [graph.shapes[name] for name in [*graph.activations(node), node.output]]
    return all(len(shape) == _VECTOR or (len(shape) == _MAP and shape[2:] == (1, 1)) for shape in shapes)


def _broadcasts(graph: Graph, node: Node) -> bool:
    """Operands must have the output's rows and columns, or a single one."""
    size = graph.shapes[node.output][1:]
    shapes = [graph.shapes[name][1:] for name in graph.activations(node)]
    shapes += [graph.weights[name].shape for name in graph.constants(node)]
    return all(
        extent in (1, size[-index]) for shape in shapes for index, extent in enumerate(reversed(shape[-2:]), start=1)
    )


def _joins_channels(_graph: Graph, node: Node) -> bool:
    return node.attributes["axis"] in (CHANNEL_AXIS, CHANNEL_AXIS - _MAP)


def _pads_with_constant(graph: Graph, node: Node) -> bool:
    if node.attributes.get("mode", b"constant") != b"constant" or any(
        n not in graph.weights for n in node.inputs[1:] if n
    ):
        return False
    pads = pad_amounts(graph, node)
    return all(pads[axis] == 0 == pads[axis + _MAP] for axis in (0, CHANNEL_AXIS)) and min(pads) >= 0


def pad_amounts(graph: Graph, node: Node) -> list[int]:
    """Return a Pad operator's eight amounts: before N, C, H, W, then after."""
    given = [int(value) for value in graph.weights[node.inputs[1]]]
    if len(node.inputs) < 4 or not node.inputs[3]:  # noqa: PLR2004 - the fourth input names the axes
        return given
    axes = [int(axis) % _MAP for axis in graph.weights[node.inputs[3]]]
    amounts = [0] * (2 * _MAP)
    for index, axis in enumerate(axes):
        amounts[axis], amounts[axis + _MAP] = given[index], given[index + len(axes)]
    return amounts


def _matrix_axis(graph: Graph, node: Node) -> int | None:
    """Return the axis that a product with a constant matrix acts on, or None for any other product.

    x @ A mixes columns and A @ x mixes rows: that is how pooling with uneven windows (adaptive pooling) is written.
    """
    left, right = node.inputs
    for matrix, axis in ((right, COL_AXIS), (left, ROW_AXIS)):
        if matrix in graph.weights and graph.weights[matrix].ndim == 2:  # noqa: PLR2004 - a matrix
            return axis
    return None


def matrix_of(graph: Graph, node: Node) -> tuple[int, str]:
    """Return (axis, name of the constant) of a MatMul of a map with a constant matrix."""
    axis = _matrix_axis(graph, node)
    return (COL_AXIS, node.inputs[1]) if axis == COL_AXIS else (ROW_AXIS, node.inputs[0])


_RULES: dict[str, Callable[[Graph, Node], bool]] = {
    **dict.fromkeys((*WINDOWED, *POINTWISE, TILE_POOL), lambda _graph, _node: True),
    **dict.fromkeys(BROADCAST, _broadcasts),
    "Concat": _joins_channels,
    "Pad": _pads_with_constant,
    "MatMul": lambda graph, node: _matrix_axis(graph, node) is not None,
}


def needs(graph: Graph, node: Node, source: str, axis: int, out: Span) -> Span:
    """Return the rows (or columns) of input `source` that output rows `out` read, not clipped to the map."""
    shape = graph.shape(source)
    size = shape.height if axis == ROW_AXIS else shape.width
    if node.kind in WINDOWED:
        return window(node, axis).needs(out)
    if node.kind == "Pad":
        before = pad_amounts(graph, node)[axis]
        return Span(out.start - before, out.stop - before)
    if node.kind == TILE_POOL:
        parts = even_parts(size, node.attributes["grid"][axis - ROW_AXIS])
        return Span(parts[out.start].start, parts[out.stop - 1].stop)
    if is_whole(graph, node) or is_fully_connected(graph, node):
        return Span(0, size)
    if node.kind == "MatMul" and matrix_of(graph, node)[0] == axis:
        return _matrix_needs(graph, node, axis, out)
    return Span(0, 1) if size == 1 else out


def _matrix_needs(graph: Graph, node: Node, axis: int, out: Span) -> Span:
    """A row of the result needs the columns of the matrix that are not zero in it."""
    matrix = graph.weights[matrix_of(graph, node)[1]]
    rows = matrix[out.start : out.stop] if axis == ROW_AXIS else matrix[:, out.start : out.stop].T
    used = np.flatnonzero(rows.any(axis=0))
    return Span(int(used[0]), int(used[-1]) + 1) if used.size else Span(0, 1)


def macs(graph: Graph, node: Node, positions: int) -> int:
    """Count multiply-accumulates of `positions` output positions (columns, of a vector)."""
    if node.kind == "Conv":
        return positions * int(np.prod(graph.weights[node.inputs[1]].shape))
    if is_fully_connected(graph, node):
        matrix = graph.weights[node.inputs[1]]
        return positions * int(matrix.shape[1 if node.attributes.get("transB", 0) else 0])
    if node.kind in ("Gemm", "MatMul") and graph.constants(node):
        matrix = max((graph.weights[name] for name in graph.constants(node)), key=lambda value: value.ndim)
        if len(graph.shapes[node.output]) != _MAP:
            return int(matrix.size)
        reduced = matrix.shape[0 if _matrix_axis(graph, node) == COL_AXIS else 1]
        return positions * graph.shapes[node.output][CHANNEL_AXIS] * int(reduced)
    return 0
