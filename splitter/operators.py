"""What each operator reads: the rule that makes tiles exact, operator by operator.

For output rows [a, b) of an operator with kernel k, dilation d, stride s and leading padding p, the input rows are

    [a*s - p,  (b - 1)*s - p + d*(k - 1) + 1)

clipped to the map; what was clipped is padding of that side, and only there. (SerFer's Appendix A adds (k - 1) / 2 on
every side instead, which is wrong for strides and for several layers in a row.) Ceil mode needs no case of its own:
its last window simply leaves the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Span
from splitter.graph import Graph, Node

POOLS = frozenset({"MaxPool", "AveragePool"})
WINDOWED = POOLS | {"Conv"}
POINTWISE = frozenset(
    {
        *(
            "Relu",
            "Clip",
            "Sigmoid",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Elu",
            "Selu",
            "Celu",
            "Tanh",
            "Softplus",
        ),
        *("Softsign", "Mish", "Gelu", "Erf", "Exp", "Log", "Sqrt", "Abs", "Neg", "Identity", "PRelu", "Dropout"),
        *("BatchNormalization", "LRN", "Swish", "ThresholdedRelu", "Reciprocal", "Floor", "Ceil", "Round"),
    }
)
BROADCAST = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean", "PRelu"})
CHANNEL_AXIS, ROW_AXIS, COL_AXIS = 1, 2, 3
_RANK = 4


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window."""

    kernel: int
    stride: int
    dilation: int
    pad_before: int
    pad_after: int

    @property
    def reach(self) -> int:
        """Rows from the first to the last tap, inclusive."""
        return self.dilation * (self.kernel - 1) + 1

    def needs(self, out: Span) -> Span:
        """Return the input rows of output rows `out`, not clipped to the map."""
        first = out.start * self.stride - self.pad_before
        return Span(first, (out.stop - 1) * self.stride - self.pad_before + self.reach)


def window(node: Node, axis: int) -> Window:
    """Return the sliding window of a windowed operator along ROW_AXIS or COL_AXIS."""
    return _window(node.attributes, axis - ROW_AXIS)


def _window(attributes: Mapping[str, Any], index: int) -> Window:
    pads = attributes.get("pads") or [0, 0, 0, 0]
    return Window(
        kernel=attributes["kernel_shape"][index],
        stride=(attributes.get("strides") or [1, 1])[index],
        dilation=(attributes.get("dilations") or [1, 1])[index],
        pad_before=pads[index],
        pad_after=pads[index + 2],
    )


def explicit_pads(attributes: Mapping[str, Any], size: Sequence[int]) -> list[int]:
    """Return [top, left, bottom, right] for a window's attributes on a map of `size` (height, width)."""
    mode = bytes(attributes.get("auto_pad", b"NOTSET")).decode()
    if mode == "NOTSET":
        return list(attributes.get("pads") or [0, 0, 0, 0])
    before, after = [0, 0], [0, 0]
    if mode.startswith("SAME"):
        for index in (0, 1):
            axis = _window({**attributes, "pads": None}, index)
            outputs = -(-size[index] // axis.stride)
            total = max(0, (outputs - 1) * axis.stride + axis.reach - size[index])
            small, large = total // 2, total - total // 2
            before[index], after[index] = (small, large) if mode == "SAME_UPPER" else (large, small)
    return [*before, *after]


def floor_pads(attributes: Mapping[str, Any], size: Sequence[int], outputs: Sequence[int]) -> list[int] | None:
    """Return the pads with which a pool in floor mode has the windows of ceil mode that start on the map.

    None where all of them do; `outputs` counts what ceil mode has.
    """
    pads = explicit_pads(attributes, size)
    windows = [_window({**attributes, "pads": pads}, index) for index in (0, 1)]
    starts = [(outputs[index] - 1) * taps.stride - taps.pad_before for index, taps in enumerate(windows)]
    late = [start >= size[index] for index, start in enumerate(starts)]
    if not any(late):
        return None
    for index, taps in enumerate(windows):
        if not late[index]:
            pads[index + 2] = max(pads[index + 2], starts[index] + taps.reach - size[index])
    return pads


def tileable(graph: Graph, node: Node) -> bool:
    """Say whether a rectangle of the operator's output needs only a rectangle of each input."""
    tensors = [*graph.activations(node), node.output]
    if any(len(graph.shapes[name]) != _RANK for name in tensors):
        return False
    if node.kind in BROADCAST:
        return _broadcasts_by_channel(graph, node)
    if node.kind in WINDOWED or node.kind in POINTWISE:
        return True
    if node.kind == "Concat":
        return node.attributes["axis"] in (CHANNEL_AXIS, CHANNEL_AXIS - _RANK)
    if node.kind == "Pad":
        return _pads_with_constant(graph, node)
    return node.kind == "MatMul" and _matrix_axis(graph, node) is not None


def _broadcasts_by_channel(graph: Graph, node: Node) -> bool:
    """Operands must be whole maps of the output's size, or constants without rows and columns."""
    size = graph.shapes[node.output][ROW_AXIS:]
    maps = all(graph.shapes[name][ROW_AXIS:] == size for name in graph.activations(node))
    return maps and all(set(graph.weights[name].shape[-2:]) <= {1} for name in graph.constants(node))


def _pads_with_constant(graph: Graph, node: Node) -> bool:
    if node.attributes.get("mode", b"constant") != b"constant" or any(
        n not in graph.weights for n in node.inputs[1:] if n
    ):
        return False
    pads = pad_amounts(graph, node)
    return all(pads[axis] == 0 == pads[axis + _RANK] for axis in (0, CHANNEL_AXIS)) and min(pads) >= 0


def pad_amounts(graph: Graph, node: Node) -> list[int]:
    """Return a Pad operator's eight amounts: before N, C, H, W, then after."""
    given = [int(value) for value in graph.weights[node.inputs[1]]]
    if len(node.inputs) < 4 or not node.inputs[3]:  # noqa: PLR2004 - the fourth input names the axes
        return given
    axes = [int(axis) % _RANK for axis in graph.weights[node.inputs[3]]]
    amounts = [0] * (2 * _RANK)
    for index, axis in enumerate(axes):
        amounts[axis], amounts[axis + _RANK] = given[index], given[index + len(axes)]
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
    """Return (axis, name of the constant) of a MatMul with a constant matrix."""
    axis = _matrix_axis(graph, node)
    return (COL_AXIS, node.inputs[1]) if axis == COL_AXIS else (ROW_AXIS, node.inputs[0])


def needs(graph: Graph, node: Node, axis: int, out: Span) -> Span:
    """Return the input rows (or columns) of output rows `out`, not clipped to the map."""
    if node.kind in WINDOWED:
        return window(node, axis).needs(out)
    if node.kind == "Pad":
        before = pad_amounts(graph, node)[axis]
        return Span(out.start - before, out.stop - before)
    if node.kind == "MatMul" and matrix_of(graph, node)[0] == axis:
        return _matrix_needs(graph, node, axis, out)
    return out


def _matrix_needs(graph: Graph, node: Node, axis: int, out: Span) -> Span:
    """A row of the result needs the columns of the matrix that are not zero in it."""
    matrix = graph.weights[matrix_of(graph, node)[1]]
    rows = matrix[out.start : out.stop] if axis == ROW_AXIS else matrix[:, out.start : out.stop].T
    used = np.flatnonzero(rows.any(axis=0))
    return Span(int(used[0]), int(used[-1]) + 1) if used.size else Span(0, 1)


def average_scale(graph: Graph, node: Node, axis: int, out: Span) -> NDArray[np.float32]:
    """Return, for each output row of an AveragePool, kernel size / number of positions that its mean counts.

    With `count_include_pad` the declared padding counts, yet not what ceil mode adds beyond it (as torch has it).
    """
    size, taps = graph.shapes[node.inputs[0]][axis], window(node, axis)
    first = np.arange(out.start, out.stop) * taps.stride - taps.pad_before
    positions = first[:, None] + taps.dilation * np.arange(taps.kernel)
    include = bool(node.attributes.get("count_include_pad", 0))
    low, high = (-taps.pad_before, size + taps.pad_after) if include else (0, size)
    counted = ((positions >= low) & (positions < high)).sum(axis=1)
    return np.asarray(taps.kernel / np.maximum(counted, 1), dtype=np.float32)


def macs(graph: Graph, node: Node, positions: int) -> int:
    """Count multiply-accumulates of `positions` output positions (all of them for a flat output)."""
    if node.kind == "Conv":
        return positions * int(np.prod(graph.weights[node.inputs[1]].shape))
    if node.kind in ("Gemm", "MatMul") and graph.constants(node):
        matrix = max((graph.weights[name] for name in graph.constants(node)), key=lambda value: value.ndim)
        if len(graph.shapes[node.output]) != _RANK:
            return int(matrix.size)
        reduced = matrix.shape[0 if _matrix_axis(graph, node) == COL_AXIS else 1]
        return positions * graph.shapes[node.output][CHANNEL_AXIS] * int(reduced)
    return 0
