"""The tiling rule of every operator, and the input regions that it implies.

    over tiles      a rectangle of a map needs a rectangle of each input map
    by columns      columns of a vector need, through a fully connected layer, the whole vector before it
    as partial sums global pooling of a map: each tile pools its share, and the readers add them up (TilePool)

An operator without a rule, or one that its rule does not cover, is computed in one piece by a stage of one tile. What
is as small as a vector is computed whole by every tile that reads it.
"""

from __future__ import annotations

import numpy as np

from serfer.core.plan import AS_IS
from serfer.splitter.network.as_is import AS_IS_OUTPUT
from serfer.splitter.network.graph import BROADCAST, PER_VALUE, POOLS, VECTOR_RANK, Axes, Graph, Node
from serfer.splitter.tiling.as_is import AsIs, AsIsOutput, runs_as_it_is
from serfer.splitter.tiling.by_position import RESIZE_BY_POSITION, ResizeByPosition
from serfer.splitter.tiling.elementwise import (
    Channelwise,
    Elementwise,
    Expand,
    Reduce,
    Reshape,
    Transpose,
    attribute_axis,
    axes_from,
    given_axes,
    joined,
    parameters,
)
from serfer.splitter.tiling.partial_reduction import (
    TILE_POOL,
    TILE_SUM,
    FullyConnected,
    TilePool,
    TileSum,
    is_fully_connected,
)
from serfer.splitter.tiling.receptive_field import ReceptiveField, all_rows
from serfer.splitter.tiling.resampling import (
    DepthToSpace,
    Gather,
    MatMul,
    Slice,
    SpaceToDepth,
    TransposedConvolution,
)
from serfer.splitter.tiling.resizing import Resize
from serfer.splitter.tiling.tiling_rule import Rule, extent
from serfer.splitter.tiling.windowed import AveragePool, ConstantPad, Convolution, MaxPool, pad_amounts

__all__ = ["TILE_POOL", "TILE_SUM", "is_fully_connected", "pad_amounts"]  # of rules' modules, for those who have rules
_ELEMENTWISE = Elementwise()
_FULLY_CONNECTED = FullyConnected()
_RULES: dict[str, Rule] = {
    AS_IS: AsIs(),
    AS_IS_OUTPUT: AsIsOutput(),
    **dict.fromkeys(PER_VALUE | BROADCAST, _ELEMENTWISE),
    **dict.fromkeys(("BatchNormalization", "LRN"), Channelwise(parameters(lambda _graph, _node: [1]))),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), Channelwise(attribute_axis(-1))),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), Channelwise(parameters(axes_from))),
    "DequantizeLinear": Channelwise(parameters(attribute_axis(1))),
    "TopK": Channelwise(parameters(attribute_axis(-1))),
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"), Reduce(given_axes)
    ),
    **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), Reduce(given_axes)),
    **dict.fromkeys(("ArgMax", "ArgMin"), Reduce(attribute_axis(0))),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), Reshape()),
    "AveragePool": AveragePool(),
    "Concat": Channelwise(joined),
    "Conv": Convolution(),
    "ConvTranspose": TransposedConvolution(),
    "DepthToSpace": DepthToSpace(),
    "Expand": Expand(),
    "Gather": Gather(),
    "MatMul": MatMul(),
    "MaxPool": MaxPool(),
    "Pad": ConstantPad(),
    "Resize": Resize(),
    RESIZE_BY_POSITION: ResizeByPosition(),
    "Slice": Slice(),
    "SpaceToDepth": SpaceToDepth(),
    TILE_POOL: TilePool(),
    TILE_SUM: TileSum(),
    "Transpose": Transpose(),
}


def tiled_kinds() -> dict[str, tuple[str, ...]]:
    about = {
        "tiled as windows (halos where they overlap)": ("Conv", "ConvTranspose", *POOLS, "Pad"),
        "tiled value by value": PER_VALUE | BROADCAST,
        "tiled as global pooling, by partial results": ("GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"),
        "spread by output columns behind a vector": ("Gemm",),
    }
    named = {kind for kinds in about.values() for kind in kinds}
    own = {TILE_POOL, TILE_SUM, AS_IS, AS_IS_OUTPUT, RESIZE_BY_POSITION}
    about["tiled where rows and columns come through"] = _RULES.keys() - named - own
    return {how: tuple(sorted(kinds)) for how, kinds in about.items()}


def rule_of(graph: Graph, node: Node) -> Rule | None:
    """Return the rule by which rectangles (or columns) of the operator's output are computed, None for no such rule."""
    return graph.once(_find_rule, node)


def whole_rule(node: Node) -> Rule:
    return _RULES[node.kind] if runs_as_it_is(node) else Rule()


def has_rule(kind: str) -> bool:
    """Return whether there is a rule for operators of this kind, which need not cover every form of it."""
    return kind in _RULES


def _find_rule(graph: Graph, node: Node) -> Rule | None:
    if is_fully_connected(graph, node):
        return _FULLY_CONNECTED
    rule = _RULES.get(node.kind)
    if rule is None:
        return None
    if _is_column_by_column(graph, node):
        return rule
    axes = graph.axes(node.output)
    return rule if axes is not None and axes_of_output(graph, node) == axes else None


def axes_of_output(graph: Graph, node: Node) -> Axes | None:
    """Return where the operator's output has rows and columns if its inputs' come through, None where they do not."""
    rule = _RULES.get(node.kind)
    return rule.axes(graph, node) if rule and graph.activations(node) else None


def reduced_axes(graph: Graph, node: Node) -> Axes | None:
    """Return the axes of one row and one column each that a reduction over all of them keeps, None of any other."""
    gone = given_axes(graph, node) if node.kind.startswith("Reduce") and node.attributes.get("keepdims", 1) else None
    axes = graph.axes(node.inputs[0]) if gone else None
    return axes if axes and {*axes} <= {*(gone or ())} else None


def tileable(graph: Graph, node: Node) -> bool:
    """Return whether a rectangle of the operator's output needs only a rectangle of each input map.

    What follows global pooling is as good as that: so small that every tile can compute it whole.
    """
    if runs_as_it_is(node):
        return False
    if node.kind == TILE_SUM or _is_small(graph, node):
        return True
    return rule_of(graph, node) is not None and graph.axes(node.output) is not None


def column_splittable(graph: Graph, node: Node) -> bool:
    """Return whether the operator may be part of a stage that is spread by the columns of its output vector.

    Maps before the vector may: every group computes them whole, which may cost less than handing them on.
    """
    if runs_as_it_is(node):
        return False
    if len(graph.shapes[node.output]) != VECTOR_RANK:
        return True
    return is_fully_connected(graph, node) or _is_column_by_column(graph, node) or is_replicated(graph, node)


def _is_column_by_column(graph: Graph, node: Node) -> bool:
    vectors = all(len(graph.shapes[name]) == VECTOR_RANK for name in (node.output, *graph.activations(node)))
    width = graph.shapes[node.output][-1]
    fits = all(graph.weights[name].shape[-1:] in ((), (1,), (width,)) for name in graph.constants(node))
    return vectors and fits and _RULES.get(node.kind) is _ELEMENTWISE


def is_replicated(graph: Graph, node: Node) -> bool:
    """Return whether every tile of a spread stage computes all of the operator's output, from all of its inputs."""
    return graph.once(_find_replicated, node)


def _find_replicated(graph: Graph, node: Node) -> bool:
    if node.kind == TILE_SUM or rule_of(graph, node) is None:
        return True
    return graph.axes(node.output) is not None and _is_small(graph, node)


def _is_small(graph: Graph, node: Node) -> bool:
    names = [*graph.activations(node), node.output]
    return all(graph.axes(name) is None or graph.shape(name).whole.area == 1 for name in names)


def receptive_field(graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
    rule = None if is_replicated(graph, node) else rule_of(graph, node)
    return rule.receptive_field(graph, node, source, axis) if rule else all_rows(extent(graph, source, axis))


def macs(graph: Graph, node: Node, positions: int) -> int:
    """Count multiply-accumulates of `positions` output positions (columns, of a vector)."""
    weight = graph.weights.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is not None and node.kind == "Conv":
        return positions * int(weight.size)
    if weight is not None and node.kind == "ConvTranspose":
        return positions * int(weight.size) // int(np.prod(node.attributes.get("strides") or 1))
    if node.kind not in ("Gemm", "MatMul"):
        return 0
    values = positions if graph.axes(node.output) is None else positions * graph.shape(node.output).channels
    return values * _summed(graph, node)


def _summed(graph: Graph, node: Node) -> int:
    left = node.inputs[0]
    shape = graph.shapes[left] if left in graph.shapes else graph.weights[left].shape
    return int(shape[0 if node.attributes.get("transA", 0) else -1])
